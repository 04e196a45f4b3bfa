"""Real servers for tests: Postgres, PgBouncer, Redis, a Redis Cluster, and a proxy that breaks connections on demand.

They run without root, on loopback, in a temporary directory, and end with the process that started them, also when
that is killed with -9. See docs/internals/servers.md.
"""
