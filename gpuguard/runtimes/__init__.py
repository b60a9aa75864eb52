"""Who is this scope, and what was it given."""
