"""Where a request comes from, for whoever writes down what it did."""

from contextvars import ContextVar

SOURCE: ContextVar[str] = ContextVar("forebay_source", default="")
