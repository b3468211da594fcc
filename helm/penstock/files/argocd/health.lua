-- How well a ModelBackend, ModelEndpoint, TrafficSplit or BatchPolicy is, for Argo CD.
-- It agrees with kstatus: Healthy is Current, Progressing is InProgress, Degraded is Failed.

local function progressing(message)
  return { status = "Progressing", message = message }
end

if obj.metadata.deletionTimestamp ~= nil then
  return progressing("it is being deleted")
end
if obj.spec ~= nil and obj.spec.suspend == true then
  return { status = "Suspended", message = "spec.suspend is true" }
end
if obj.status == nil or obj.status.conditions == nil then
  return progressing("the operator has not seen it yet")
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  return progressing("the operator has not seen the last change yet")
end

local found = {}
for _, condition in ipairs(obj.status.conditions) do
  found[condition.type] = condition
end
if found.Stalled ~= nil and found.Stalled.status == "True" then
  return { status = "Degraded", message = found.Stalled.message }
end
if found.Reconciling ~= nil and found.Reconciling.status == "True" then
  return progressing(found.Reconciling.message)
end
if found.Ready == nil then
  return progressing("the operator has not said whether it is ready")
end
if found.Ready.status ~= "True" then
  return progressing(found.Ready.message)
end
return { status = "Healthy", message = found.Ready.message }
