"""The embedded store: `sqlite:///jobs.db`. Several processes of one machine, no server, durable before every answer.

store          the backend, composed of its parts: intake · leases · observing · control · logs
session        what the parts share: one file, its readers, its writer
unit_of_work   one call inside a transaction, and group commit: calls of many threads share one sync;  waiting: waiters
tables         rows of jobs and queues, every statement by its name (`*.sql`); a test asserts the plan of each poll
gates          gates and lanes in tables;  claim_cursor: what a claim of a queue with lanes loads (`engine.lanes`)
database       connections, retries while the file is locked, errors;  migrate: the schema, numbered and checked
"""
