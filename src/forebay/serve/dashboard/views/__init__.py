"""What each page shows, worked out from a store: plain values, bounded reads, no HTTP and no HTML."""
