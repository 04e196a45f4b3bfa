"""A run, or many, as text: one line a seed, totals, and the story of a failure.

Promise: a failing seed is shown with the one command that replays it and the steps of its trace that matter: those of
the jobs that a violation names, and the last ones before it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from forebay_proof.sim.simulation import SeedResult

_SHOWN = 40


class Total(Struct):
    """The sum of many seeds."""

    seeds: int = 0
    failed: list[int] = []
    simulated: float = 0.0
    accepted: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    starts: int = 0
    stale: int = 0
    alone: int = 0
    faults: dict[str, int] = {}

    def add(self, result: SeedResult) -> None:
        self.seeds += 1
        self.simulated += result.simulated
        for name in ("accepted", "done", "dead", "cancelled", "starts", "stale", "alone"):
            setattr(self, name, getattr(self, name) + getattr(result, name))
        self.faults = dict(sorted((Counter(self.faults) + Counter(result.faults)).items()))
        if not result.ok:
            self.failed = [*self.failed, result.seed]


def line(result: SeedResult) -> str:
    """One seed in one line."""
    verdict = "ok    " if result.ok else "FAILED"
    return (
        f"seed {result.seed:<7} {verdict} {result.digest[:16]}  {result.simulated:5.0f} s  "
        f"{result.accepted:4} accepted  {result.starts:4} starts  {result.done:4} done  {result.dead:3} dead  "
        f"{result.stale:3} stale  {sum(result.faults.values()):4} faults"
    )


def command(seed: int, hours: float | None, faults: Sequence[str] | None, cells: int = 0) -> str:
    """What to type to see this seed again."""
    words = ["python -m forebay_proof.sim --seed", str(seed)]
    words += [f"--cells {cells}"] if cells else []
    words += [] if hours is None else [f"--hours {hours:g}"]
    words += [] if faults is None else [f"--faults {','.join(faults)}"]
    return " ".join(words)


def history(result: SeedResult) -> Iterator[str]:
    """The violations of a seed, and the steps around them; `result` must have kept its trace."""
    for rule, text in result.violations[:10]:
        yield f"  {rule}: {text}"
    if len(result.violations) > 10:
        yield f"  … and {len(result.violations) - 10} more"
    jobs = sorted({int(number) for _, text in result.violations[:3] for number in re.findall(r"\((\d+), \d+\)", text)})
    jobs += sorted({int(number) for _, text in result.violations[:3] for number in re.findall(r"job (\d+)", text)})
    words = [f"({number}, " for number in jobs[:3]]
    about = [step for step in result.trace if any(word in step for word in words)]
    if about:
        yield "  steps of the jobs concerned (µs, actor, step):"
        yield from (f"    {step}" for step in about[-_SHOWN:])
    first = next((place for place, step in enumerate(result.trace) if " VIOLATION " in step), len(result.trace))
    yield "  the last steps before:"
    yield from (f"    {step}" for step in result.trace[max(0, first - _SHOWN) : first + 1])


def summary(total: Total, wall: float) -> str:
    faults = ", ".join(f"{count} {name}" for name, count in total.faults.items())
    return (
        f"{total.seeds} seeds, {len(total.failed)} failed; {total.simulated:.0f} simulated seconds in {wall:.1f} s "
        f"({total.simulated / max(wall, 1e-9):.0f} a second)\n"
        f"{total.accepted} accepted, {total.starts} handler starts, {total.done} done, {total.dead} dead, "
        f"{total.cancelled} cancelled, {total.stale} stale verdicts refused, {total.alone} suspects run in quarantine\n"
        f"{sum(total.faults.values())} faults: {faults}"
    )
