"""The parts of `bench.postgres`: a server and its processes, the load, the peers, and the figures by theme."""
