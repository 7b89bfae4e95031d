"""The HTTP dialects, one module each."""
