"""Metrics of a server: the fleet's from the ledger, the queues' from the store, the process's own from its routes."""

from forebay.serve.metrics.metrics import Metrics
from forebay.serve.metrics.middleware import Metered

__all__ = ["Metered", "Metrics"]
