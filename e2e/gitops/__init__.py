"""How GitOps tools see a DisaggregatedInference: Argo CD by our Lua, Flux by kstatus."""
