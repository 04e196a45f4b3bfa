"""The parts of `bench.redis` for Redis: its server, its peers, and the figures beside them."""
