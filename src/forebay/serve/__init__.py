"""The HTTP side of Forebay: the API for producers and workers in any language, metrics, health and the dashboard.

It needs the extra `server`; nothing here is imported before somebody serves.
"""
