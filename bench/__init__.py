"""Benchmarks: each a module with a `--quick` and a `--json`, comparing inside one run."""
