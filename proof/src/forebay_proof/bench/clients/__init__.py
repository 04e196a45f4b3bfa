"""What measurements against a server share: processes and their tallies, the load, our worker and clients, peers."""
