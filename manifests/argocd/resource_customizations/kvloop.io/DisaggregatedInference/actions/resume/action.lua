obj.spec.rollout.paused = false
return obj
