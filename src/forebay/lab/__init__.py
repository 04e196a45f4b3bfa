"""The lab: load, faults and experiments on the public API alone, and the proof of what came of them.

ground      a store to work in: a private server that syncs, or a URL
mix, draw   the app that the fleet runs, and the jobs of a seed
load        producers on a schedule that does not wait for answers; their receipts
fleet       `forebay worker` in processes that may be killed
watch       what can be seen from outside, second by second
trial       all of these together, once
proof       receipts and effects against the store, in seconds; or against the ledger, on Spark
results     rows in Parquet, case by case, so that a run goes on where it stopped
"""
