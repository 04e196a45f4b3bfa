"""The in-process store: `memory://`, and `memory:///directory` with a journal.

store    the contract's verbs, with jobs · queues · engine · intake behind them
facts    what must not be lost, by table: rows, keys, specs, logs
changes  what a change does to the facts, what the ledger's record says of it, and who is woken
index    what follows from the facts: lines of ready jobs, gates, deadlines, waiters
journal  the write-ahead log that makes changes durable, its frames, snapshots and recovery
"""
