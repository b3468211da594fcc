{{/* The operator's name: of its Deployment, Service, ServiceAccount and roles. It is fixed, since a
     cluster has one Penstock: its CRDs and ClusterRoles are the cluster's. But what gives the ServiceAccount rights
     outside of its namespace has that namespace in its name: no chart applied elsewhere takes them. */}}
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

{{/* Refuses a Helm that lacks --take-ownership, by which an installation takes over what another has left. */}}
{{- define "penstock.helm" -}}
{{- $version := .Capabilities.HelmVersion.Version -}}
{{- if semverCompare "<3.17.0-0" $version -}}
{{- fail (printf "helm: expected 3.17 or newer, found %s; see https://helm.sh/docs/intro/install" $version) -}}
{{- end -}}
{{- end }}

{{/* Refuses values that are gone, and names what to use instead. */}}
{{- define "penstock.removed" -}}
{{- $gone := list -}}
{{- range $path, $instead := dict
  "operator.workers" "operator.extraArgs, such as [--workers=16]"
  "operator.serviceAccountAnnotations" "kubectl annotate serviceaccount penstock-operator"
  "operator.topologySpreadConstraints" "operator.affinity, with podAntiAffinity"
  "operator.securityContext" "operator.podSecurityContext"
  "reports.plain" "nothing: pods report over TLS"
  "reports.authorityLifetime" "operator.extraArgs, such as [--authority-lifetime=8760h]"
  "reports.authorityOverlap" "operator.extraArgs, such as [--authority-overlap=1h]"
  "reports.certificateLifetime" "operator.extraArgs, such as [--certificate-lifetime=720h]"
  "monitoring.podMonitors.interval" "nothing: the alerts are written for 30s"
  "monitoring.podMonitors.labels" "monitoring.labels"
  "monitoring.rules.labels" "monitoring.labels"
  "monitoring.dashboard.labels" "monitoring.labels"
}}
{{- $found := $.Values -}}
{{- range splitList "." $path -}}
{{- $found = get ($found | default dict) . -}}
{{- end -}}
{{- if $found -}}
{{- $gone = append $gone (printf "%s: removed; use %s" $path $instead) -}}
{{- end -}}
{{- end -}}
{{- if $gone -}}
{{- $hint := "Not set by you? --reuse-values keeps the defaults of the former chart: use --reset-then-reuse-values." -}}
{{- append $gone $hint | join "\n" | fail -}}
{{- end -}}
{{- end }}

{{/* The securityContext of a container: it meets the restricted Pod Security Standard. */}}
{{- define "penstock.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
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
