local paused = obj.spec.rollout ~= nil and obj.spec.rollout.paused == true
return {
  pause = {disabled = paused, displayName = "Pause rollout", iconClass = "fa fa-fw fa-pause-circle"},
  resume = {disabled = not paused, displayName = "Resume rollout", iconClass = "fa fa-fw fa-play-circle"},
  restart = {displayName = "Restart engines", iconClass = "fa fa-fw fa-redo"},
}
