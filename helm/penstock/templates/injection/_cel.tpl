{{/* A YAML value as CEL: a text that begins with = is an expression, every other value is itself. */}}
{{- define "penstock.cel" -}}
{{- $value := . -}}
{{- if kindIs "map" $value -}}
{ {{- range $index, $key := keys $value | sortAlpha }}{{ if $index }}, {{ end }}{{ $key | quote }}: dyn({{ include "penstock.cel" (get $value $key) }}){{ end -}} }
{{- else if kindIs "slice" $value -}}
[{{- range $index, $each := $value }}{{ if $index }}, {{ end }}dyn({{ include "penstock.cel" $each }}){{ end -}}]
{{- else if and (kindIs "string" $value) (hasPrefix "=" $value) -}}
{{ trimPrefix "=" $value }}
{{- else -}}
{{ toJson $value }}
{{- end -}}
{{- end }}

{{/* Whether this cluster can inject: MutatingAdmissionPolicy is served from Kubernetes 1.36 on. */}}
{{- define "penstock.injects" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}true{{ end -}}
{{- end }}

{{/* Rules that match whatever makes pods, and pods. */}}
{{- define "penstock.injection.workloads" -}}
- apiGroups: [""]
  apiVersions: [v1]
  operations: [CREATE]
  resources: [pods]
- apiGroups: [apps]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [deployments, statefulsets, daemonsets]
- apiGroups: [batch]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [jobs, cronjobs]
{{- end }}

{{/* Whether one of these asks for a sidecar, as CEL. */}}
{{- define "penstock.injection.asks" -}}
'penstock.dev/inject' in (request.kind.kind == 'Pod' ? object : request.kind.kind == 'CronJob' ?
object.spec.jobTemplate.spec.template : object.spec.template).?metadata.?labels.orValue({})
{{- end }}

{{/* What all policies say of a pod: the port that moves, its container, and the name by which Services reach the
     sidecar. Takes CEL of the pod's metadata and spec. The policy's name is the label's value, which makes the name of
     a ConfigMap. A port is looked for in all containers by penstock.dev/port; without it, it is the only one of the
     first container, or the one there that is named http. */}}
{{- define "penstock.injection.variables" -}}
- name: policy
  expression: "string({{ .meta }}.labels['penstock.dev/inject'])"
- name: annotations
  expression: "{{ .meta }}.?annotations.orValue({})"
- name: wanted
  expression: "variables.annotations[?'penstock.dev/port'].orValue('')"
- name: protocol
  expression: "string(variables.annotations[?'penstock.dev/protocol'].orValue('instances'))"
- name: byNumber
  expression: "variables.wanted.matches('^[1-9][0-9]{0,4}$')"
- name: holders
  expression: >-
    variables.wanted == '' ? {{ .spec }}.containers.filter(c, c.name == {{ .spec }}.containers[0].name && has(c.ports)) :
    {{ .spec }}.containers.filter(c, c.?ports.orValue([]).exists(p, p.?protocol.orValue('TCP') == 'TCP' &&
    (p.?name.orValue('') == variables.wanted || string(p.containerPort) == variables.wanted)))
- name: tcp
  expression: "size(variables.holders) == 0 ? [] : variables.holders[0].ports.filter(p, p.?protocol.orValue('TCP') == 'TCP')"
- name: ports
  expression: >-
    variables.wanted == '' ? (size(variables.tcp) == 1 ? variables.tcp :
    variables.tcp.filter(p, p.?name.orValue('') == 'http')) :
    variables.tcp.filter(p, p.?name.orValue('') == variables.wanted || string(p.containerPort) == variables.wanted)
- name: found
  expression: >-
    size(variables.holders) < 2 && (size(variables.ports) == 1 || size(variables.ports) == 0 && variables.byNumber)
- name: number
  expression: "size(variables.ports) == 1 ? variables.ports[0].containerPort : variables.byNumber ? int(variables.wanted) : 0"
- name: portName
  expression: "size(variables.ports) == 1 ? variables.ports[0].?name.orValue('') : ''"
- name: name
  expression: >-
    variables.portName != '' ? variables.portName :
    ({{ .spec }}.containers + {{ .spec }}.?initContainers.orValue([])).exists(c, c.?ports.orValue([]).exists(p,
    p.?name.orValue('') == 'http')) ? 'penstock' : 'http'
{{- end }}

{{/* Why a pod cannot get a sidecar, as CEL of its metadata and spec: a text, empty where it can. Of two ports of one name
     Services take the first, and look at containers before sidecars. */}}
{{- define "penstock.injection.obstacle" -}}
!variables.policy.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$') ?
'its value must be the name of a BatchPolicy, which has lowercase letters, digits, - and . alone, found "' +
variables.policy + '"' :
variables.protocol in ['instances', 'v2', 'openai', 'none'] ?
('kubernetes.io/config.mirror' in variables.annotations ? 'it only shows a pod that a node has from a file' :
{{ .spec }}.?hostNetwork.orValue(false) ? 'hostNetwork: the sidecar would need ports 8012 and 8013 of the node' :
{{ .spec }}.?os.?name.orValue('linux') == 'windows' ||
{{ .spec }}.?nodeSelector[?'kubernetes.io/os'].orValue('linux') == 'windows' ? 'windows: the sidecar runs on Linux' :
{{ .spec }}.containers.exists(c, c.name == 'penstock-sidecar') ? 'it has a container penstock-sidecar' :
({{ .spec }}.containers + {{ .spec }}.?initContainers.orValue([])).exists(c,
c.?ports.orValue([]).exists(p, p.containerPort in [8012, 8013])) ?
'a container has port 8012 or 8013, which are the sidecar\'s' :
{{ .spec }}.?volumes.orValue([]).exists(v, v.name in ['penstock-settings', 'penstock-token']) ?
'it has a volume penstock-settings or penstock-token' :
variables.number in [8012, 8013] || variables.number > 65535 ?
'penstock.dev/port: expected a number up to 65535, but not 8012 or 8013, which are the sidecar\'s, found ' +
variables.wanted :
size(variables.holders) > 1 ? 'penstock.dev/port: several containers have a port ' + variables.wanted :
size({{ .spec }}.containers.filter(c, c.?ports.orValue([]).exists(p, p.?name.orValue('') == variables.name &&
p.?protocol.orValue('TCP') == 'TCP'))) > (variables.portName == '' ? 0 : 1) ? 'another container has a port named ' +
variables.name + ' as well: Services by that name would lead there' :
variables.found && ['startupProbe', 'livenessProbe', 'readinessProbe'].exists(p, variables.holders.exists(c, p in c &&
(has(c[p].grpc) && c[p].grpc.port == variables.number || has(c[p].httpGet) &&
c[p].httpGet.?scheme.orValue('') == 'HTTPS' &&
(c[p].httpGet.port == variables.number || c[p].httpGet.port == variables.portName)))) ?
'a probe asks its port by HTTPS or gRPC: the sidecar speaks HTTP with the application' :
variables.found ? '' : variables.wanted == '' ?
'the first container has not one port, nor one named http: say the port by the annotation penstock.dev/port' :
'penstock.dev/port: no container has a port ' + variables.wanted) :
'penstock.dev/protocol: expected instances, v2, openai or none, found ' + variables.protocol
{{- end }}
