"""Stores keep state and move it atomically; the contract is `forebay.store.protocol`."""
