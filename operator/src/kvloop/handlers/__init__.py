"""The shell: Kopf watches and probes, the controller decides. The only package that imports Kopf."""
