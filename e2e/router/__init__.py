"""The router against engines in this process: simulated ones, and scripted ones for faults."""
