"""Authentication, authorisation, limits, and the operator log (docs/security.md)."""
