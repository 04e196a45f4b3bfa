"""Who is let in, what they may do, how much of it, and what is written down about it (docs/security.md)."""
