"""One finished run as the checks see it: what the simulation saw, and its ledger put in order."""

from forebay.core.event import Acked, Died, Dismissed, Released, Retried
from forebay.testing.sim.book import Book, Turn
from forebay.testing.sim.depot import Depot
from forebay.testing.sim.evidence import Evidence
from forebay.testing.sim.world import SECOND, World

_REAPED_WITHIN = 3 * SECOND
_WORDS: dict[type, str] = {
    Acked: "Ack",
    Retried: "Retry",
    Died: "DeadLetter",
    Released: "Release",
    Dismissed: "Cancel",
}


class Case:
    """Evidence and ledger of one run. `last_tick_at`: schedules were tended at least up to this instant."""

    def __init__(self, evidence: Evidence, depot: Depot, world: World, last_tick_at: int) -> None:
        self.evidence = evidence
        self.world = world
        self.depot = depot
        self.last_tick_at = last_tick_at
        self.book = Book(depot.events(), [record.at for record in depot.ledger])

    def verdict(self, turn: Turn) -> str:
        """How a turn ended, in the word of the verdict; empty while it has not."""
        return "" if turn.ending is None else _WORDS[type(turn.ending)]

    def abandoned(self, turn: Turn) -> bool:
        """Whether others took it from its holder. What a worker says of its own quarantine is no such thing."""
        error = turn.ending.error if isinstance(turn.ending, Retried | Died | Released) else None
        if error is None or not error.abandoned:
            return False
        sent = [one for one in self.evidence.sent.get(turn.fence, []) if one.verdict == self.verdict(turn)]
        own = [one for one in sent if one.role == "settler"]
        return not own or any(one.applied for one in sent if one not in own)

    def excused(self, turn: Turn, processes: dict[str, list[tuple[int, int]]]) -> bool:
        """Whether something happened to its holder, or to everybody, that explains a lease running out."""
        if turn.fence not in self.evidence.received:
            return True
        since = turn.ended - (turn.until - turn.claimed_at) - _REAPED_WITHIN
        windows = [*self.world.trouble, *processes.get(turn.owner, [])]
        return turn.owner in self.evidence.died_at or any(
            begun <= turn.ended and ended >= since for begun, ended in windows
        )
