-- As `kubectl rollout restart` does it: prefill and decode are replaced together, with the usual care.
local os = require("os")
local now = os.date("!%Y-%m-%dT%H:%M:%SZ")
for _, role in ipairs({"prefill", "decode"}) do
  local engines = obj.spec[role] or {}
  local template = engines.podTemplate or {}
  template.metadata = template.metadata or {}
  template.metadata.annotations = template.metadata.annotations or {}
  template.metadata.annotations["kubectl.kubernetes.io/restartedAt"] = now
  engines.podTemplate = template
  obj.spec[role] = engines
end
return obj
