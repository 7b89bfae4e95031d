-- Health of a DisaggregatedInference. Its status follows kstatus and sums up all of its children:
-- https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
local status = obj.status or {}
if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = "Being deleted"}
end
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "Waiting for the operator to see the newest spec"}
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end
local function say(health, condition)
  return {status = health, message = condition.reason .. ": " .. condition.message}
end

if conditions.Stalled.status == "True" then
  return say("Degraded", conditions.Stalled)
end
if obj.spec.rollout ~= nil and obj.spec.rollout.paused then
  return say("Suspended", conditions.Ready)
end
if conditions.Ready.status == "True" then
  return say("Healthy", conditions.Ready)
end
return say("Progressing", conditions.Ready)
