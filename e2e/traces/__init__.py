"""Synthetic traffic with a known best TTL, in the formats that `kvloop advise` and `kvloop simulate` read."""
