"""One finished run as the checks see it: what the simulation saw, and its ledger put in order."""

from forebay.core.ledger import Change
from forebay_proof.sim.evidence import RunEvidence
from forebay_proof.sim.ledger_index import JobDelivery, LedgerIndex
from forebay_proof.sim.store_process import Stores
from forebay_proof.sim.world import SECOND, World

_REAPED_WITHIN = 3 * SECOND
_WORDS: dict[str, str] = {
    Change.ACKED: "Ack",
    Change.RETRIED: "Retry",
    Change.DIED: "DeadLetter",
    Change.RELEASED: "Release",
    Change.DISCARDED: "Cancel",
}


class RunCase:
    """Evidence and ledger of one run. `last_tick_at`: schedules were tended at least up to this instant."""

    def __init__(self, evidence: RunEvidence, store_process: Stores, world: World, last_tick_at: int) -> None:
        self.evidence = evidence
        self.world = world
        self.store_process = store_process
        self.last_tick_at = last_tick_at
        self.histories = store_process.histories()
        self.index = LedgerIndex(store_process.changes(), [record.at for record in store_process.ledger])

    def verdict(self, delivery: JobDelivery) -> str:
        """How a delivery ended, in the word of the verdict; empty while it has not."""
        return "" if delivery.ending is None else _WORDS[delivery.ending.change]

    def abandoned(self, delivery: JobDelivery) -> bool:
        """Whether others took it from its holder. What a worker says of its own quarantine is no such thing."""
        error = None if delivery.ending is None else delivery.ending.error
        if error is None or not error.abandoned:
            return False
        sent = [one for one in self.evidence.sent.get(delivery.fence, []) if one.verdict == self.verdict(delivery)]
        own = [one for one in sent if one.role == "settler"]
        return not own or any(one.applied for one in sent if one not in own)

    def excused(self, delivery: JobDelivery, processes: dict[str, list[tuple[int, int]]]) -> bool:
        """Whether a fault of its holder, or of the whole world, explains that the lease ran out."""
        if delivery.fence not in self.evidence.received:
            return True
        since = delivery.ended - (delivery.until - delivery.claimed_at) - _REAPED_WITHIN
        of_store = self.store_process.trouble_of(delivery.fence[0], delivery.owner)
        windows = [*self.world.trouble, *of_store, *processes.get(delivery.owner, [])]
        return delivery.owner in self.evidence.died_at or any(
            begun <= delivery.ended and ended >= since for begun, ended in windows
        )
