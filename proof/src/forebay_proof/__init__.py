"""The proof of Forebay: what holds every store and worker to the guarantees, and measures them.

conformance, checkers       the contract of a store as cases, and the checks of a history
model, machine, pair        a reference model, and the state machine that compares a store with it
sim, faulty, disk           seeded simulation of workers, store, disk and network, with faults
servers                     real Postgres, Redis and proxies for tests, without root
lab, bench                  load, chaos, experiments; what each guarantee costs
cli                         the commands that this package adds to `forebay`
"""
