"""Peers, each a program of its own that seeds, or works, or does nothing; `tally` is all that it shares with ours."""
