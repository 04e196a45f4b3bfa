"""Every kind of fault by its name. Importing a room of them registers its kinds."""

from forebay_proof.lab.chaos import files, handlers, held_transaction, http, postgres, processes, redis, wires
from forebay_proof.lab.chaos.fault import KINDS, ChaosFault, fault_of

__all__ = ["KINDS", "ROOMS", "ChaosFault", "fault_of"]

ROOMS = (processes, handlers, wires, postgres, held_transaction, redis, files, http)
