"""What `kvloop check` looks at, one module for each kind of question."""
