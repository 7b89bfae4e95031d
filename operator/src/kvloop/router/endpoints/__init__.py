"""Where engines come from: a fixed list, or EndpointSlices."""
