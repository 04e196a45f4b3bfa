"""Shipped for users and store authors: a virtual clock, the conformance suite, a reference model, faults, servers."""
