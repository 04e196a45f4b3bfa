"""The embedded store: `sqlite:///jobs.db`. Several processes of one machine, no server, durable before every answer.

store       the contract's verbs: intake · claims · settling · endings · queues · logs · waiting behind them
turn        one call inside a transaction: its instant, its counters, its gates, its news
writer      group commit: calls of many threads share one transaction and one sync
database    connections, patience with locks, errors in our words;  migrate: the schema, numbered and checked
queries     every statement, by name, in `*.sql`; a test asserts the plan of each poll
"""
