"""The values of each page, read from a store: bounded reads, no HTTP and no HTML."""
