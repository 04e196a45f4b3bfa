"""The in-process store: `memory://`, and `memory:///directory` with a journal.

store    the contract's verbs, with jobs · queues · engine · intake behind them
facts    what must not be lost, changed by events alone: rows, keys, specs, logs
index    what follows from the facts: lines of ready jobs, gates, deadlines, waiters
journal  the write-ahead log that makes events durable, its frames, snapshots and recovery
"""
