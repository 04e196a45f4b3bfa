"""What an experiment is: a hypothesis, cases to measure at three scales, and a judgement of what was found.

Everything here is a value. An experiment is listed, estimated, run case by case, stopped, gone on with and reported
without knowing how: `drive` runs its cases, the results are rows in Parquet, and the report gives the rows back as
`ExperimentResults`, from which `judge` makes its sentences. A judgement that has nothing to go by says so.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from msgspec import Struct

from forebay.core.errors import Invalid

if TYPE_CHECKING:
    from forebay_proof.lab.experiments.stage import Stage

ExperimentScale = Literal["quick", "full", "release"]
SCALES: Final = get_args(ExperimentScale)
STORES: Final = ("postgres", "redis", "sqlite")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")


class ExperimentCase(Struct, frozen=True):
    """One measurement: `settings` are what is swept and what is held, `seconds` what a round takes, about.

    Its name is the name of its file of results, so a case that was measured is never measured again by accident.
    """

    name: str
    store: str
    settings: Mapping[str, Any]
    seconds: float
    rounds: int = 1

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise Invalid("case", f"{self.name!r} is no name", "use small letters, digits, dots and dashes")
        if self.store not in STORES:
            raise Invalid("store", f"there is no lab on {self.store!r}", f"use {', '.join(STORES)}")


def rounds_of(scale: ExperimentScale, store: str) -> int:
    """Spread is what Postgres is measured for; the others are there to be compared."""
    if scale == "quick":
        return 1
    return (2 if scale == "full" else 3) if store == "postgres" else 1


class Statistic(Struct, frozen=True):
    """One metric of one case over its rounds."""

    median: float
    minimum: float
    maximum: float
    rounds: int
    unit: str


class ExperimentResults(Struct, frozen=True):
    """What was measured of one experiment: cells by case and metric, and the settings of each case."""

    cells: Mapping[tuple[str, str], Statistic]
    cases: Mapping[str, Mapping[str, Any]]

    def value(self, case: str, metric: str) -> float | None:
        cell = self.cells.get((case, metric))
        return None if cell is None else cell.median

    def of(self, metric: str, **settings: Any) -> dict[str, Statistic]:
        """The cells of a metric in the cases with these settings."""
        return {
            case: cell
            for (case, name), cell in self.cells.items()
            if name == metric and all(self.cases[case].get(key) == value for key, value in settings.items())
        }

    def total(self, metric: str) -> float:
        return sum(cell.median for cell in self.of(metric).values())

    def worst(self, metric: str) -> float | None:
        """The highest of all rounds and cases."""
        return max((cell.maximum for cell in self.of(metric).values()), default=None)


class Conclusion(Struct, frozen=True):
    """One sentence. `holds` None: there was nothing to judge by, or it is a remark."""

    sentence: str
    holds: bool | None = None


class Chart(Struct, frozen=True):
    """A metric over a setting, a line for each value of another one."""

    title: str
    sentence: str
    metric: str
    unit: str
    over: str
    line: str = "store"
    only: Mapping[str, Any] = {}


class TimeChart(Struct, frozen=True):
    """Samples of one case over its seconds; of all its cases where none is named."""

    title: str
    sentence: str
    names: Sequence[str]
    unit: str = ""


class Experiment(Struct, frozen=True):
    """`bound` says what limits the figures, and by which evidence it is known."""

    number: int
    title: str
    hypothesis: str
    bound: str
    cases: Callable[[ExperimentScale], list[ExperimentCase]]
    run: Callable[[ExperimentCase, "Stage"], None]
    judge: Callable[[ExperimentResults], list[Conclusion]]
    charts: Sequence[Chart] = ()
    timelines: Sequence[TimeChart] = ()

    def seconds(self, scale: ExperimentScale) -> float:
        return sum(case.seconds * case.rounds for case in self.cases(scale))


def missing(what: str) -> Conclusion:
    return Conclusion(f"not measured: {what}")


def zero(found: ExperimentResults, metric: str, claim: str) -> Conclusion:
    """A count that must be nought in every round of every case."""
    worst = found.worst(metric)
    if worst is None:
        return missing(claim)
    cases = len(found.of(metric))
    return Conclusion(f"{claim}: {worst:,.0f} in the worst of {cases} cases", worst == 0)


def at_most(found: ExperimentResults, metric: str, bound: float, claim: str, **settings: Any) -> Conclusion:
    """The median of every case is below a bound."""
    cells = found.of(metric, **settings)
    if not cells:
        return missing(claim)
    worst = max(cells, key=lambda case: cells[case].median)
    cell = cells[worst]
    sentence = f"{claim}: {cell.median:,.4g} {cell.unit} in {worst}, goal at most {bound:,g}"
    return Conclusion(sentence, cell.median <= bound)


def ratio(found: ExperimentResults, above: tuple[str, str], below: tuple[str, str]) -> float | None:
    one, other = found.value(*above), found.value(*below)
    return None if one is None or not other else one / other
