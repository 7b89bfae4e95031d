"""The loop: observe, plan, apply, status. Knows the planner and the API server, and nothing of Kopf."""
