"""Peers, each a program of its own that puts, or works, or does nothing; `tally` is all that it shares with ours."""
