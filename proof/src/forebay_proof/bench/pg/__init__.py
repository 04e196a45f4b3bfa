"""The parts of `bench.postgres` that know Postgres: its server, its peers, and the figures by theme."""
