{{/* Name of everything that belongs to the operator. */}}
{{- define "kvloop.name" -}}
{{- $name := printf "%s-operator" (trimSuffix "-operator" .Release.Name | trunc 54) -}}
{{- default $name .Values.fullnameOverride -}}
{{- end -}}

{{/* By name and component, NetworkPolicies of engines and routers know the operator's pod. */}}
{{- define "kvloop.selector" -}}
app.kubernetes.io/name: kvloop
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvloop.labels" -}}
{{ include "kvloop.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* An image's reference; takes the image's values and the chart's version. */}}
{{- define "kvloop.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1) }}
{{- end -}}
{{- end -}}
