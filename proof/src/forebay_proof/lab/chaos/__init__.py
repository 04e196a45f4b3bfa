"""Chaos: a plan of faults, carried out on real processes, servers and wires under load, and what must hold after it.

plan      what is to happen, read from TOML and checked
scene     what faults may touch: the store, its server, the fleet, the load, and the record of every strike
faults    each kind of fault by its name; the kinds themselves are in processes, wires, postgres, redis, files, http
app       the lab's app with handlers that do every bad thing a process can suffer
recovery  how long it took until what a fault had stopped went on, read from what the handlers wrote
run       the timeline, the drain, the proof and the verdict
"""
