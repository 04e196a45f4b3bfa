"""The pure core: values, policies and decisions. No I/O, no clock, no threads, no randomness of its own."""
