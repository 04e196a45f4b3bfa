"""Benchmarks: what each part of Forebay costs, beside a baseline in the same run."""
