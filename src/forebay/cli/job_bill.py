"""The bill of a job: what one job costs a store and its clients, as it was measured; package data of `capacity`.

Promise: every figure has its unit, its spread, the command that measured it, the day and the machine.
`forebay lab bill` measures a bill; `job_bill.json` holds those that were recorded.
"""

from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid

_FILE: Final = "job_bill.json"


class BillFigure(Struct, frozen=True):
    """The median of `rounds`, and the lowest and highest of them. `note`: what to keep in mind."""

    value: float
    unit: str
    spread: tuple[float, float]
    rounds: int
    command: str
    date: str
    machine: str
    note: str = ""


class JobBill(Struct, frozen=True, forbid_unknown_fields=True):
    """Of one store and one mix of jobs. Connections and memory are of a process, the rest of a job.

    log_bytes      written to the log of the server: the WAL, or the append-only file
    log_factor     bytes of log for each further byte of payload; `waiting_factor`: bytes stored
    cell_rate      the highest rate that one cell was shown to hold
    """

    store: str
    mix: str
    producer_cpu: BillFigure
    worker_cpu: BillFigure
    server_cpu: BillFigure
    payload_bytes: BillFigure
    log_bytes: BillFigure
    log_factor: BillFigure
    ledger_bytes: BillFigure
    waiting_bytes: BillFigure
    waiting_factor: BillFigure
    worker_memory: BillFigure
    worker_connections: BillFigure
    producer_connections: BillFigure
    cell_rate: BillFigure


@cache
def job_bills() -> tuple[JobBill, ...]:
    """The recorded bills."""
    data = files(__package__).joinpath(_FILE).read_bytes()
    return msgspec.json.decode(data, type=tuple[JobBill, ...])


def job_bill(store: str, mix: str) -> JobBill:
    """The recorded bill of a store and a mix; `Invalid` if it was never measured."""
    for bill in job_bills():
        if (bill.store, bill.mix) == (store, mix):
            return bill
    measured = ", ".join(f"{bill.store} with {bill.mix}" for bill in job_bills())
    raise Invalid(
        "capacity",
        f"the mix {mix!r} was not measured on {store!r}",
        f"recorded are {measured}; `forebay lab bill` measures others, for --bill",
    )
