"""Metrics of a server: fleet counters from the ledger, queue gauges from the store, and those of the process itself."""

from forebay.serve.metrics.server_metrics import Metrics

__all__ = ["Metrics"]
