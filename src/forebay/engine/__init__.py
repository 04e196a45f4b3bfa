"""The rules of a queue that do not depend on where its jobs are stored.

intake   what a batch of drafts becomes: keys, merges, copies, capacity, shedding
settle   which settles count, and what a verdict makes of a job
control  which spec may replace which, and when a schedule fires
lanes    which ready jobs a claim returns: gates, classes and their turns
order    the heap behind them
lines    which job of a line is exposed, and what holds the others
waiters  which threads are woken by work or room
logs     partitions of entries and of a group's members, and what may be committed
"""
