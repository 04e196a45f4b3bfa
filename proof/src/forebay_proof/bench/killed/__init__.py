"""One small program for each queue of `bench.recovery`, with the settings that the queue has by itself."""
