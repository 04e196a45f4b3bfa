"""The load of every measurement: one job mix, one generator, one app with its handlers, one fleet, one bare claimer.

The lab, chaos, the benchmarks and the peers beside them all use it. `payloads` and the tally are standard library only,
since the peers of a benchmark run in an environment of their own.
"""
