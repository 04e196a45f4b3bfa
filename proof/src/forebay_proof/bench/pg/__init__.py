"""The parts of `bench.postgres` for Postgres: its server, its peers, and the figures by theme."""
