"""`make report`: what reuse is worth on the published test beds, simulated, and on two real CPU engines."""
