"""The pure core: words, policies and decisions. No I/O, no clock, no threads, no randomness of its own."""
