{{/* The operator's name: of its Deployment, Service, ServiceAccount and roles. It is fixed, since a
     cluster has one Penstock: its CRDs and ClusterRoles are the cluster's. */}}
{{- define "penstock.operator" -}}
penstock-operator
{{- end }}

{{/* The Lease by which one operator acts: that of all namespaces, or of the one that it looks after. */}}
{{- define "penstock.lease" -}}
penstock-installation{{ with .Values.operator.watchNamespace }}.{{ . }}{{ end }}
{{- end }}

{{/* The ClusterRole of routers, the only one that the operator may bind. */}}
{{- define "penstock.routerClusterRole" -}}
penstock-router
{{- end }}

{{/* An image's whole reference. Takes a dict: root, the top context; name, the image's name. */}}
{{- define "penstock.image" -}}
{{- $whole := index .root.Values.images .name -}}
{{- if not (or $whole .root.Values.images.prefix) -}}
{{- fail (printf "images.prefix: expected the registry and path where you keep Penstock's images, found nothing; set it, such as --set images.prefix=registry.example/penstock for registry.example/penstock/%s:%s" .name (.root.Values.images.tag | default .root.Chart.AppVersion)) -}}
{{- end -}}
{{- $whole | default (printf "%s/%s:%s" .root.Values.images.prefix .name (.root.Values.images.tag | default .root.Chart.AppVersion)) -}}
{{- end }}

{{/* The names of a list of {name: ...}, by commas. */}}
{{- define "penstock.names" -}}
{{- range $index, $one := . }}{{ if $index }},{{ end }}{{ $one.name }}{{ end -}}
{{- end }}

{{/* A duration such as 1h30m in milliseconds; each part of it counts for 317 years at most. */}}
{{- define "penstock.milliseconds" -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 -}}
{{- $number := regexFind "[1-9][0-9]*" . | default "0" -}}
{{- $unit := get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]+" .) -}}
{{- $most := 10000000000000 -}}
{{- if or (gt (len $number) 13) (gt (int64 (trunc 13 $number)) (div $most $unit)) -}}
{{- $sum = add $sum $most -}}
{{- else -}}
{{- $sum = add $sum (mul $number $unit) -}}
{{- end -}}
{{- end -}}
{{- $sum -}}
{{- end }}

{{/* A lifetime, within what the operator takes. Takes a dict: name and text of the value, least. */}}
{{- define "penstock.lifetime" -}}
{{- $found := include "penstock.milliseconds" .text | int64 -}}
{{- $most := "876000h" -}}
{{- if lt $found (include "penstock.milliseconds" .least | int64) -}}
{{- fail (printf "%s: expected at least %s, found %s" .name .least .text) -}}
{{- else if gt $found (include "penstock.milliseconds" $most | int64) -}}
{{- fail (printf "%s: expected at most %s, found %s" .name $most .text) -}}
{{- end -}}
{{- .text -}}
{{- end }}

{{/* The overlap of two authorities: a rotation takes two of it, with a third of a life left. */}}
{{- define "penstock.overlap" -}}
{{- if gt (mul 6 (include "penstock.milliseconds" .authorityOverlap)) (include "penstock.milliseconds" .authorityLifetime | int64) -}}
{{- fail (printf "reports.authorityOverlap: expected at most a sixth of reports.authorityLifetime (%s), found %s" .authorityLifetime .authorityOverlap) -}}
{{- end -}}
{{- .authorityOverlap -}}
{{- end }}

{{/* How routers are scaled, as the operator reads it; nothing where they are not. */}}
{{- define "penstock.routerAutoscaling" -}}
{{- with .autoscaling -}}
{{- if .enabled -}}
{{- if lt (int .maxReplicas) (int .minReplicas) -}}
{{- fail (printf "router.autoscaling.maxReplicas: expected at least minReplicas (%d), found %d" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" $.resources) -}}
{{- fail "router.resources.requests.cpu: expected one where router.autoscaling is enabled, which scales by it, found none" -}}
{{- end -}}
{{- omit . "enabled" | toJson -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Labels that select the operator's pods. */}}
{{- define "penstock.operatorSelector" -}}
app.kubernetes.io/name: penstock-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of everything. Not app.kubernetes.io/managed-by=penstock: the operator watches that one. */}}
{{- define "penstock.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: penstock
{{- end }}
