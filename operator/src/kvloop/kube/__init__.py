"""The edge to the API server: the only package that uses the Kubernetes client. Plain dicts in and out."""
