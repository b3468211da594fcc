{{/* The operator's name: of its Deployment, Service, ServiceAccount, Lease and roles. It is fixed, since a
     cluster has one Penstock: its CRDs and ClusterRoles are the cluster's. */}}
{{- define "penstock.operator" -}}
penstock-operator
{{- end }}

{{/* The Lease by which one installation acts: that of all namespaces, or of the one that it looks after. */}}
{{- define "penstock.installationLease" -}}
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
