{{- define "forebay.labels" -}}
{app.kubernetes.io/name: forebay, app.kubernetes.io/instance: {{ .root.Release.Name }}, app.kubernetes.io/component: {{ .part }}}
{{- end }}

{{- define "forebay.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- define "forebay.env" -}}
- name: FOREBAY_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.urlSecret.name }}, key: {{ .Values.urlSecret.key }}}}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "forebay.pod" -}}
automountServiceAccountToken: false
securityContext: {runAsNonRoot: true, runAsUser: 10001, seccompProfile: {type: RuntimeDefault}}
{{- end }}

{{- define "forebay.container" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}
