"""A Request in, a typed value or a typed error out: retries, limits. Knows no sessions."""
