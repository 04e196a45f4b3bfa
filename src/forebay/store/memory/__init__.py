"""The in-process store: `memory://`, and `memory:///directory` with a journal.

store    the verbs of all parts: jobs · control · observing · logs · ledger, over one session
session  the lock, the clock, and the one way to commit a change
facts    what must not be lost, by table: rows, keys, specs, logs
changes  what a change does to the facts, what the ledger's record says of it, and which waiters it wakes
index    what follows from the facts: lanes of ready jobs, gates, lines, deadlines, waiters
journal  the write-ahead log that makes changes durable, its frames, snapshots and recovery
"""
