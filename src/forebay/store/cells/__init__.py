"""Several stores as one: each queue, or each partition of it, is in exactly one cell (decision 0029)."""
