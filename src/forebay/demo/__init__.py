"""The guided tour, packaged: `forebay demo`, `make demo` or `python -m forebay.demo`.

tour    the in-process stores: priorities, duplicates, backpressure, retries, a journal under kill -9
fleet   worker processes on a SQLite file, killed while they work, and the count afterwards
proof   the same, proved from the ledger on Spark
mix     the app that the fleet runs
"""
