"""Protocol and KV semantics, one suite for every kind of engine: where they differ, the simulated one is wrong."""
