"""What `make demo` shows: conversations through the router, and what reuse does to their time to first token."""
