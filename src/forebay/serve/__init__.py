"""The HTTP side of Forebay: the API for producers and workers in any language, metrics, health and the dashboard.

It needs the extra `server` and is imported by `forebay serve` only.
"""
