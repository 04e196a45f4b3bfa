"""The lab: load, faults and experiments on the public API, and the audit of what they did to jobs.

lab_server, server_stats   the store of an experiment: a private server that syncs, or a URL; what bounds it
app, mix                   the app that the fleet runs, and the jobs of a seed
load, producer             producers on a schedule that does not wait for answers; their receipts
fleet                      `forebay worker` in processes that may be killed
watch                      samples of a run from outside, second by second
trial                      all of these together, once
handler_log, audit         what handlers wrote; receipts and effects compared with the store, or the ledger on Spark
results, report            rows in Parquet, case by case: a run continues where it stopped; the page made of them
"""
