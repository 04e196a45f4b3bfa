"""Authentication, authorisation, limits, and the operator log (docs/guides/security.md)."""
