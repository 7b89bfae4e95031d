"""kvloop: KV cache that comes back from decode to prefill, run by a Kubernetes operator."""

__version__ = "0.1.0"
