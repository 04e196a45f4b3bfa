"""The Redis store: every verb one atomic script on a Redis or Valkey server. See docs/internals/redis.md.

store      the backend, composed of its parts: intake · leases · observing · control · logs · waiting
session    what the parts share: the server, its clock, the specs (`specs`) that batches rely on
scripts    the scripts, from the libraries and verbs in `lua/`; `lua/keys.lua` is the legend of every key
connect    the URL, connections, retries of calls;  cluster: the node of a cluster that serves the store
health     whether the server's settings keep the promise
records    jobs as callers see them, from the records of the scripts
"""
