"""The raw ceiling: pgbench with the very statements that the store sends, without Python and without a worker.

The statements are recorded from a store at work, so they follow it: one cycle of enqueue, claim and acknowledge of a
hundred jobs. What differs from cycle to cycle is put in: a new token, the ids that the claim gave. pgbench prepares the
statements and sends the payloads with each, as the store does. What cannot be known from a recording, such as a store
that changes its calls from one cycle to the next, shows as jobs that are left running: then there is no figure.
"""

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

import psycopg
from psycopg import sql

from forebay import Want, open_store
from forebay.core.outcome import Ack
from forebay.store.postgres.runs import PackLease
from forebay_proof.bench.clients.cell import RATE, Values, costs
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.server import Bench, PostgresDatabase
from forebay_proof.load.claimer import LEASE
from forebay_proof.load.mix import email_drafts
from forebay_proof.load.payloads import BATCH
from forebay_proof.servers.postgres import find_programs
from forebay_proof.servers.process import ServerUnavailable

CONNECTIONS: Final = 8
_WARM: Final = 8
_LONG: Final = 500
_TPS: Final = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)
_PLACE: Final = re.compile(r"%[sb]")
_STRAY: Final = "SELECT count(*) FROM forebay.pack"


@dataclass(frozen=True)
class SentStatement:
    """One statement as the store sent it."""

    statement: str
    parameters: Sequence[Any]
    texts: Sequence[str]


@dataclass(frozen=True)
class PgbenchScript:
    """For pgbench: statements by name, and the values of their long parameters."""

    enqueue: str
    claim: str
    settle: str
    variables: dict[str, str]

    @property
    def cycle(self) -> str:
        return self.enqueue + self.claim + self.settle

    @property
    def drain(self) -> str:
        return self.claim + self.settle


def find_pgbench() -> Path | None:
    """Beside the server, or on the path."""
    try:
        beside = find_programs().folder / "pgbench"
    except ServerUnavailable:
        beside = Path()
    if beside.is_file():
        return beside
    found = shutil.which("pgbench")
    return None if found is None else Path(found)


@contextmanager
def _recording() -> Iterator[list[SentStatement]]:
    """Statements of this thread that use our schema, while the block lasts."""
    calls: list[SentStatement] = []
    me = threading.get_ident()
    real = psycopg.Cursor.execute

    def execute(cursor: Any, query: Any, params: Any = None, **options: Any) -> Any:
        if threading.get_ident() == me and "forebay." in str(query):
            given = list(params or ())
            calls.append(SentStatement(str(query), given, [_text(cursor.connection, each) for each in given]))
        return real(cursor, query, params, **options)

    with patch.object(psycopg.Cursor, "execute", execute):
        yield calls


def _text(connection: Any, value: Any) -> str:
    return sql.Literal(value).as_string(connection)


def record(url: str) -> PgbenchScript:
    """After some cycles, so that the id of the pack is a number that nothing else is."""
    store = open_store(url)
    want = [Want("default", BATCH)]
    made = email_drafts(BATCH)
    try:
        for _ in range(_WARM):
            store.enqueue(made)
            store.settle([(lease, Ack()) for lease in store.claim(want, "bench", LEASE)])
        with _recording() as calls:
            store.enqueue(made)
            enqueues = len(calls)
            leases = store.claim(want, "bench", LEASE)
            claims = len(calls)
            store.settle([(lease, Ack()) for lease in leases])
    finally:
        store.close()
    (pack,) = {lease.ref.pack for lease in leases if isinstance(lease, PackLease)}
    variables: dict[str, str] = {}
    parts = (calls[:enqueues], calls[enqueues:claims], calls[claims:])
    enqueue, claim, settle = ("".join(_rendered(call, pack, variables) for call in part) for part in parts)
    return PgbenchScript(enqueue, claim, settle, variables)


def _rendered(call: SentStatement, pack: int, variables: dict[str, str]) -> str:
    values = iter(zip(call.parameters, call.texts, strict=True))

    def put(_: "re.Match[str]") -> str:
        value, text = next(values)
        if isinstance(value, UUID):
            return "gen_random_uuid()"
        if value == f"{{{pack}}}":
            return "ARRAY[:c_pack::bigint]"
        if len(text) > _LONG:
            name = f"long{len(variables)}"
            variables[name] = value.decode() if isinstance(value, bytes) else str(value)
            return f":{name}"
        return text

    statement = _PLACE.sub(put, call.statement)
    return statement + (" \\gset c_\n" if "forebay.claim(" in statement else ";\n")


@dataclass(frozen=True)
class PgbenchResult:
    """What pgbench says: scripts a second, and how long each took, in seconds."""

    rate: float
    times: list[float]


def run(
    database: PostgresDatabase, clients: Clients, script: str, variables: dict[str, str], **how: float
) -> PgbenchResult:
    """`how`: connections and seconds."""
    program = find_pgbench()
    assert program is not None
    connections, seconds = round(how["connections"]), how["seconds"]
    file = clients.directory / "script.sql"
    file.write_text(script)
    given = [f"--define={name}={value}" for name, value in variables.items()]
    command: list[str | Path] = [program, "--no-vacuum", "--protocol=prepared", "--log", "--file", file, *given]
    command += ["--client", str(connections), "--jobs", str(min(2, connections)), "--time", str(round(seconds))]
    clients.run("pgbench", [*command, database.url])
    output = "".join(log.read_text() for log in clients.directory.glob("pgbench-*.log"))
    rate = _TPS.search(output)
    if rate is None or "aborted" in output:
        raise RuntimeError(f"pgbench failed:\n{output[-2000:]}")
    lines = [line for log in clients.directory.glob("pgbench_log.*") for line in log.read_text().splitlines()]
    return PgbenchResult(float(rate[1]), [int(line.split()[2]) / 1e6 for line in lines])


def ceiling(bench: Bench, seconds: float) -> Values:
    """Enqueue, claim and acknowledge in batches of a hundred, on a backlog of a depth that stays."""
    with bench.database() as database, Clients() as clients:
        script = record(database.url)
        backlog.seed(database, 20_000)
        database.settle_down()
        server, wal, client = database.server_cpu(), database.wal(), clients.cpu()
        found = run(database, clients, script.cycle, script.variables, connections=CONNECTIONS, seconds=seconds)
        server, wal, client = database.server_cpu() - server, database.wal() - wal, clients.cpu() - client
        if database.number(_STRAY):
            raise RuntimeError("the recorded statements do not settle what they claim")
        jobs = BATCH * len(found.times)
        return {RATE: BATCH * found.rate, **costs(jobs, server, client, wal)}
