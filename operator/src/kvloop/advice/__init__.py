"""What to set, from what was seen: pure functions, which never apply anything.

The methods, their assumptions and their sources are written up in operator/docs/advice.md.
"""
