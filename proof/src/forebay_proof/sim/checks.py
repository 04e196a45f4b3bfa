"""What must hold of every run, by name. Each check reads evidence and ledger and yields what it finds wrong.

Evidence is authoritative about what happened outside the store (starts, effects, answers), the ledger about the order
of things inside it. What is found while a run goes on (an overfull pool, a suspect outside quarantine, a lost
record) is recorded at once, under names of the same kind.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from forebay_proof.checkers import check_all
from forebay_proof.sim.case import RunCase
from forebay_proof.sim.evidence import RunEvidence
from forebay_proof.sim.pool import DROPPED
from forebay_proof.sim.rules_deliveries import (
    attempts_counted,
    drains,
    effects_once,
    exclusive_lease,
    fencing,
    killers_charged,
    leases_last,
    releases_free,
    subject_order,
    verdicts_kept,
)
from forebay_proof.sim.rules_jobs import (
    capacity,
    each_tick_once,
    latest_wins,
    never_early,
    no_loss,
    no_resurrection,
    one_end,
    one_job_a_key,
    one_redrive,
    reclaimed_first,
)
from forebay_proof.sim.store_process import Stores
from forebay_proof.sim.world import World

CHECKS: Final[dict[str, Callable[[RunCase], Iterator[str]]]] = {
    "I1 no loss": no_loss,
    "I1 one end": one_end,
    "I2 exclusive lease": exclusive_lease,
    "I2 leases last": lambda case: leases_last(case, case.evidence.troubles),
    "I3 fencing": fencing,
    "I4 attempts are counted exactly": attempts_counted,
    "I4 releases are free": releases_free,
    "I5 each tick once": each_tick_once,
    "I6 capacity": capacity,
    "I7 order per subject": subject_order,
    "I7 the latest wins": latest_wins,
    "I7 reclaimed jobs go first": reclaimed_first,
    "I10 drain": drains,
    "I10 verdicts are kept": verdicts_kept,
    "I11 one job a key": one_job_a_key,
    "I12 never early": never_early,
    "I13 no resurrection": no_resurrection,
    "I14 one redrive": one_redrive,
    "I17 a job that kills its worker is charged": killers_charged,
    "effects once per delivery": effects_once,
    "the ledger": lambda case: (
        str(violation)
        for changes in case.histories
        for violation in check_all(changes, drained=True, dropped=[DROPPED])
    ),
}


def check_run(evidence: RunEvidence, store_process: Stores, world: World, last_tick_at: int) -> Counter[str]:
    """Hold the run to every check; the violations go to the world, the final states come back."""
    case = RunCase(evidence, store_process, world, last_tick_at)
    for name, check in CHECKS.items():
        for text in check(case):
            world.violation(name, text)
    return Counter(history.ends[-1] for history in case.index.histories.values() if history.ends)
