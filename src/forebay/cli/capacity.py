"""`capacity`: the cells, cores, disk, memory and connections that a rate of jobs needs, from the bill of one job.

Promise: arithmetic alone. No store is opened, and every line shows its own calculation, so that it can be checked by
hand; a figure is either measured, with its command, or an option with a default that the output names.
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from forebay.cli.argtypes import count, duration, fraction, rate, size
from forebay.cli.command import Command, Invocation
from forebay.cli.exits import OK
from forebay.cli.job_bill import BillFigure, JobBill, job_bill
from forebay.core.errors import Invalid
from forebay.core.humanize import format_duration
from forebay.core.instant import micros
from forebay.core.limits import LEDGER_KEPT, PAYLOAD_BYTES
from forebay.store.cells.ids import MAX_CELL

_BUFFERS: Final = 1 << 30
_BYTES_A_CONNECTION: Final = 10 << 20
_DAY: Final = 86_400
_UNITS: Final = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_IN_MEMORY: Final = ("redis",)
"""Stores that keep everything in memory and execute on one core."""


class Demand(Struct, frozen=True):
    """What is wanted. None: as in the bill. `headroom` is the share of a core that the plan uses.

    copies       of each cell's data, its primary included
    backlog      how long jobs may pile up before a worker takes them
    connections  of one server; where more are needed, a pooler shares them
    """

    rate: float
    payload: int | None = None
    cell_rate: float | None = None
    headroom: float = 0.6
    copies: int = 2
    retention: timedelta = LEDGER_KEPT
    backlog: timedelta = timedelta(hours=1)
    connections: int = 200

    def __post_init__(self) -> None:
        for name, value, maximum in (
            ("--rate", self.rate, 1e9),
            ("--payload", self.payload or 0, PAYLOAD_BYTES),
            ("--replication", self.copies, 10),
        ):
            if value > maximum:
                raise Invalid(name, f"{value:,.15g} is more than {maximum:,.15g}", "give less")


class PlanLine(Struct, frozen=True):
    """One figure of the plan, and how it is calculated."""

    name: str
    value: float
    unit: str
    arithmetic: str


class CapacityPlan:
    """The lines of a plan, in the order in which they follow from each other."""

    def __init__(self, demand: Demand, bill: JobBill) -> None:
        self.demand = demand
        self.bill = bill
        self.cell_rate = demand.cell_rate or bill.cell_rate.value
        self.cells = _whole(demand.rate / self.cell_rate)
        if self.cells > MAX_CELL + 1:
            raise Invalid(
                "--cell-rate",
                f"{self.cell_rate:,.15g} jobs/s a cell make {self.cells:,} cells, at most {MAX_CELL + 1:,}",
                f"give each cell at least {_whole(demand.rate / (MAX_CELL + 1)):,}, if its server holds that",
            )
        if bill.store in _IN_MEMORY and (busy := self._cores_of_a_cell()) > 1:
            raise Invalid(
                "--cell-rate",
                f"{self.cell_rate:,.15g} jobs/s keep {busy:.3g} cores busy, and a cell on {bill.store} has one",
                f"give each cell at most {int(self.cell_rate / busy):,}",
            )
        self.more_payload = max(0.0, (demand.payload or 0) - bill.payload_bytes.value)
        self.workers = self._processes(bill.worker_cpu)
        self.producers = self._processes(bill.producer_cpu)

    def _cores_of_a_cell(self) -> float:
        return self.demand.rate / self.cells * self.bill.server_cpu.value / 1e6 / self.demand.headroom

    def _processes(self, cpu: BillFigure) -> int:
        return _whole(self.demand.rate * cpu.value / 1e6 / self.demand.headroom)

    def lines(self) -> list[PlanLine]:
        return [*self._cores(), *self._storage(), *self._sessions()]

    def _cores(self) -> Iterator[PlanLine]:
        bill, demand = self.bill, self.demand
        wanted = f"{demand.rate:,.15g} jobs/s"
        yield PlanLine("cells", self.cells, "", f"{wanted} ÷ {self.cell_rate:,.15g} jobs/s a cell, rounded up")
        each = demand.rate / self.cells
        cores = _whole(self._cores_of_a_cell())
        yield PlanLine(
            "cores of a cell's server",
            cores,
            "cores",
            f"{each:,.6g} jobs/s × {bill.server_cpu.value:g} µs ÷ {demand.headroom:g} headroom, rounded up",
        )
        yield PlanLine(
            "cores of all servers",
            cores * self.cells * demand.copies,
            "cores",
            f"{cores} × {self.cells:,} cells × {demand.copies} copies",
        )
        for name, processes, cpu in (
            ("worker processes, a core each", self.workers, bill.worker_cpu),
            ("producer processes, a core each", self.producers, bill.producer_cpu),
        ):
            arithmetic = f"{wanted} × {cpu.value:g} µs ÷ {demand.headroom:g} headroom, rounded up"
            yield PlanLine(name, processes, "", arithmetic)
        memory = self.workers * bill.worker_memory.value * 2**20
        arithmetic = f"{self.workers:,} processes × {bill.worker_memory.value:g} MiB, without what handlers keep"
        yield PlanLine("memory of workers", memory, "B", arithmetic)

    def _storage(self) -> Iterator[PlanLine]:
        bill, demand = self.bill, self.demand
        log, shown = self._with_payload(bill.log_bytes, bill.log_factor)
        yield PlanLine("log written", demand.rate * log, "B/s", f"{demand.rate:,.15g} jobs/s × {shown}")
        each = demand.rate * log / self.cells
        yield PlanLine("log of a cell", each, "B/s", f"÷ {self.cells:,} cells")
        yield PlanLine("log of a cell in a day", each * _DAY, "B", "× 86,400 s, if all of it is archived")
        yield PlanLine(
            "replication traffic",
            demand.rate * log * (demand.copies - 1),
            "B/s",
            f"log written × ({demand.copies} copies − 1)",
        )
        ledger, waiting = self._stored()
        yield ledger
        yield waiting
        yield PlanLine(
            "disk of all servers" if bill.store not in _IN_MEMORY else "memory of all servers",
            (ledger.value + waiting.value) * self.cells * demand.copies,
            "B",
            f"ledger and backlog of a cell × {self.cells:,} cells × {demand.copies} copies, without the log",
        )

    def _stored(self) -> tuple[PlanLine, PlanLine]:
        bill, demand = self.bill, self.demand
        each = demand.rate / self.cells
        kept, piled = demand.retention.total_seconds(), demand.backlog.total_seconds()
        ledger = PlanLine(
            "ledger of a cell",
            each * bill.ledger_bytes.value * kept,
            "B",
            f"{each:,.6g} jobs/s × {bill.ledger_bytes.value:g} B × {_in_words(demand.retention)}",
        )
        waiting, shown = self._with_payload(bill.waiting_bytes, bill.waiting_factor)
        return ledger, PlanLine(
            "backlog of a cell",
            each * waiting * piled,
            "B",
            f"{each:,.6g} jobs/s × {shown} × {_in_words(demand.backlog)}",
        )

    def _with_payload(self, base: BillFigure, factor: BillFigure) -> tuple[float, str]:
        """Bytes of a job, and how they come about."""
        if not self.more_payload:
            return base.value, f"{base.value:g} B"
        more = f"{self.more_payload:g} B more payload × {factor.value:g}"
        return base.value + self.more_payload * factor.value, f"({base.value:g} B + {more})"

    def _sessions(self) -> Iterator[PlanLine]:
        bill, demand = self.bill, self.demand
        of_workers, of_producers = bill.worker_connections.value, bill.producer_connections.value
        opened = self.workers * of_workers + self.producers * of_producers
        arithmetic = f"{self.workers:,} workers × {of_workers:g} + {self.producers:,} producers × {of_producers:g}"
        yield PlanLine("connections to a cell", opened, "", f"{arithmetic}, if each of them visits every cell")
        sessions = min(opened, demand.connections)
        pooled = "no pooler is needed" if sessions == opened else f"a pooler in front of each cell shares {sessions:g}"
        yield PlanLine("sessions of a cell's server", sessions, "", f"at most {demand.connections}: {pooled}")
        if bill.store in _IN_MEMORY:
            return
        yield PlanLine(
            "memory of a cell's server",
            _BUFFERS + sessions * _BYTES_A_CONNECTION,
            "B",
            f"1 GiB of shared buffers + {sessions:g} sessions × 10 MiB, both assumed",
        )

    def assumptions(self) -> list[tuple[str, str]]:
        demand, bill = self.demand, self.bill
        held = bill.cell_rate.value
        above = f", above the {held:,.15g} that were measured" if self.cell_rate > held else ""
        payload = bill.payload_bytes.value if demand.payload is None else demand.payload
        return [
            ("--headroom", f"{demand.headroom:g} of a core is used, the rest is for peaks and a lost server"),
            ("--cell-rate", f"{self.cell_rate:,.15g} jobs/s a cell{above}"),
            ("--replication", f"{demand.copies} copies of each cell, all on servers of the same size"),
            (
                "--retention",
                f"the ledger is kept for {_in_words(demand.retention)}; let `forebay ledger keep --bytes` allow it",
            ),
            ("--backlog", f"{_in_words(demand.backlog)} of jobs may wait at once"),
            ("--payload", f"{payload:g} B a job, which do not compress"),
            ("--connections", f"{demand.connections} sessions of one server"),
            ("handlers", "cost no CPU of their own: add yours to the workers"),
            ("cells", "are alike: no tenant or queue needs more than its cell has"),
        ]


def _whole(value: float) -> int:
    """Rounded up, and not for the sake of a last binary digit."""
    return max(1, ceil(round(value, 9)))


def _in_words(duration: timedelta) -> str:
    return format_duration(micros(duration))


def _shown(value: float, unit: str) -> str:
    for scale, prefix in _UNITS:
        if unit.startswith("B") and value >= scale:
            return f"{value / scale:,.3g} {prefix}{unit[1:]}"
    return f"{value:,.15g} {unit}".rstrip()


def _chosen_bill(call: Invocation) -> JobBill:
    """That of --bill, or the recorded one of --store and --mix."""
    args = call.args
    if args.bill is None:
        return job_bill(args.store or "postgres", args.mix or "s1")
    try:
        bill = msgspec.json.decode(Path(args.bill).read_bytes(), type=JobBill)
    except (OSError, msgspec.DecodeError) as error:
        raise Invalid("--bill", f"{args.bill!r} is not a bill: {error}", "make one: forebay lab bill > FILE") from None
    for name, given, has in (("--store", args.store, bill.store), ("--mix", args.mix, bill.mix)):
        if given not in (None, has):
            raise Invalid(name, f"{given!r} is given, {args.bill!r} is of {has!r}", f"leave {name} out")
    return bill


def _capacity(call: Invocation) -> int:
    args = call.args
    given = ("payload", "cell_rate", "headroom", "copies", "retention", "backlog", "connections")
    chosen = {name: getattr(args, name) for name in given if getattr(args, name) is not None}
    plan = CapacityPlan(Demand(args.rate, **chosen), _chosen_bill(call))
    if call.screen.as_json:
        assumptions = dict(plan.assumptions())
        call.screen.emit({"demand": plan.demand, "plan": plan.lines(), "assumptions": assumptions, "bill": plan.bill})
        return OK
    say = call.screen.say
    say(f"plan for {plan.demand.rate:,.15g} jobs/s of the mix {plan.bill.mix} on {plan.bill.store}")
    call.screen.table(
        ("", "needs", "arithmetic"),
        [(each.name, _shown(each.value, each.unit), each.arithmetic) for each in plan.lines()],
    )
    say("\nmeasured")
    _show_bill(call, plan.bill)
    say("\nassumed")
    call.screen.facts(plan.assumptions())
    return OK


def _show_bill(call: Invocation, bill: JobBill) -> None:
    """The figures, and below them the runs that they are from, by number."""
    figures = {name: getattr(bill, name) for name in bill.__struct_fields__ if name not in ("store", "mix")}
    runs = list(dict.fromkeys((each.command, each.date, each.machine) for each in figures.values()))
    rows = [
        (
            name,
            f"{each.value:,.6g} {each.unit}",
            f"{each.spread[0]:,.6g} … {each.spread[1]:,.6g}",
            f"[{runs.index((each.command, each.date, each.machine)) + 1}] {each.note}".rstrip(),
        )
        for name, each in figures.items()
    ]
    call.screen.table(("figure", "median", "spread", "run"), rows)
    for number, (command, date, machine) in enumerate(runs, 1):
        call.screen.say(f"[{number}] {command} ({date}, {machine})")


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--rate", type=rate, required=True, metavar="N/s", help="jobs a second, at the peak")
    add("--mix", metavar="MIX", help="the kind of jobs whose bill is used (default: s1)")
    add("--store", metavar="KIND", help="the store of every cell: postgres or redis (default: postgres)")
    add("--bill", metavar="FILE", help="a bill of your own machine, by `forebay lab bill` (default: the recorded one)")
    add("--payload", type=size, metavar="BYTES", help="the payload of a job: 2K (default: that of the mix)")
    add("--retention", type=duration, metavar="DURATION", help="how long the ledger is kept (default: 7d)")
    add(
        "--backlog",
        type=duration,
        metavar="DURATION",
        help="how much may wait at once, as a time at the rate (default: 1h)",
    )
    add("--headroom", type=fraction, metavar="SHARE", help="the share of a core that is used (default: 0.6)")
    add("--replication", type=count, dest="copies", metavar="N", help="copies of a cell's data (default: 2)")
    add("--cell-rate", type=rate, metavar="N/s", help="jobs a second of one cell (default: the measured rate)")
    add("--connections", type=count, metavar="N", help="sessions above which a server gets a pooler (default: 200)")


COMMANDS = (
    Command(
        "capacity",
        "plan cells, cores, disk, memory and connections for a rate of jobs",
        _capacity,
        """
forebay capacity --rate 1000000 --mix s1
forebay capacity --rate 50000 --payload 2K --retention 30d --cell-rate 20000
forebay capacity --rate 600000/m --store redis --json | jq '.plan[] | {name, value, unit}'
""",
        _arguments,
        takes_store=False,
    ),
)
