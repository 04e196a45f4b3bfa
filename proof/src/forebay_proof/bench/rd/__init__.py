"""The parts of `bench.redis` that know Redis: its server, its peers, and the figures beside them."""
