"""The embedded store: `sqlite:///jobs.db`. Several processes of one machine, no server, durable before every answer.

store          the backend, composed of its parts: intake · claims · settling · observing · control · logs
session        what the parts share: one file, readers, and group commit: calls of many threads share one sync
unit_of_work   one call inside a transaction: its instant, its counters, what fell due; waiting: who is notified
tables         rows of jobs and queues, every statement by its name (`*.sql`); a test asserts the plan of each poll
gates, fronts  gates and lanes in tables, and what a claim of a queue with lanes loads (`engine.lanes`)
database       connections, patience with locks, errors in our words;  migrate: the schema, numbered and checked
commits        a group's position, moved in the caller's own transaction
"""
