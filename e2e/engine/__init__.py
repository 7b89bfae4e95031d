"""The real engine: vLLM on the CPU with the real NIXL connector, in an environment of its own, cached by version."""
