"""`migrate`: create a store, or bring its schema up to date, and show its version.

Postgres migrations have phases. `pre` is compatible with the running version: apply it before the new version starts.
`post`: apply it when no old version runs any more. --dry-run changes nothing and exits with 1 when migrations are
pending, for deployments. A phase that is blocked because the other one comes first exits with 1 too.
"""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from forebay.cli.command import Command, Invocation
from forebay.cli.exits import FAILED, OK
from forebay.cli.resolve_store import connecting, is_postgres, masked
from forebay.cli.schema import schema_of
from forebay.core.errors import Invalid
from forebay.core.humanize import SECOND, iso
from forebay.store.open import open_store

if TYPE_CHECKING:
    from forebay.store.postgres.health import MigrationStep


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--phase", choices=("pre", "post"), help="only the migrations of this phase; for postgresql:// (default: all)"
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="make the tables of a sqlite: store in a file that has tables of an application",
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing; exit code 1 if migrations are pending")


def _migrate(call: Invocation) -> int:
    if call.args.shared:
        if call.args.dry_run or not call.url.startswith("sqlite:"):
            raise Invalid("--shared", "it is for the file of a sqlite: store, and changes it", "leave it out")
        open_store(call.url, shared=True).close()
    if is_postgres(call.url):
        return _migrate_server(call)
    if call.args.phase is not None:
        raise Invalid("--phase", f"{masked(call.url)} has no phases", "leave it out")
    durable = None
    if not call.args.dry_run:
        with call.store(create=True) as store:
            durable = store.capabilities.durable
    schema = schema_of(call.url)
    if call.screen.as_json:
        facts = {"store": masked(call.url), "schema": schema.version, "known": schema.known, "durable": durable}
        call.screen.emit({**facts, "dry_run": call.args.dry_run})
    else:
        call.screen.say(f"{masked(call.url)}: {schema.words}{_durability(durable)}")
    return OK if schema.current else FAILED


def _durability(durable: bool | None) -> str:
    return "" if durable is None else ", durable" if durable else ", not durable"


def _migrate_server(call: Invocation) -> int:
    phase, dry = call.args.phase, call.args.dry_run
    with connecting(call.url):
        from forebay.cli.postgres import apply, steps_of

        done = [] if dry else [migration.number for migration in apply(call.url, phase)]
        steps = steps_of(call.url)
    coming = _coming(steps, phase) if dry else []
    if call.screen.as_json:
        call.screen.emit(_document(call, steps, done, coming))
    else:
        _report(call, steps, done, coming)
    return FAILED if coming or _blocked(steps, phase) else OK


def _blocked(steps: "list[MigrationStep]", phase: str | None) -> bool:
    """Whether a migration of the wanted phase is pending behind one of the other phase."""
    left = [step.migration.phase for step in steps if step.applied_at is None]
    return phase in left


def _coming(steps: "list[MigrationStep]", phase: str | None) -> list[int]:
    """The migrations that would be applied: the pending ones, up to the first of another phase."""
    coming = []
    for step in steps:
        if step.applied_at is None:
            if phase not in (None, step.migration.phase):
                break
            coming.append(step.migration.number)
    return coming


def _document(call: Invocation, steps: "list[MigrationStep]", done: list[int], coming: list[int]) -> dict[str, object]:
    files = [
        {
            "number": step.migration.number,
            "name": step.migration.name,
            "phase": step.migration.phase,
            "applied_at": None if step.applied_at is None else iso(int(step.applied_at * SECOND)),
        }
        for step in steps
    ]
    schema = sum(step.applied_at is not None for step in steps)
    facts = {"store": masked(call.url), "schema": schema, "known": len(steps), "durable": True}
    return {**facts, "dry_run": call.args.dry_run, "applied": done, "would_apply": coming, "migrations": files}


def _report(call: Invocation, steps: "list[MigrationStep]", done: list[int], coming: list[int]) -> None:
    rows = []
    for step in steps:
        number, at = step.migration.number, step.applied_at
        state = "applied now" if number in done else "would be applied" if number in coming else "pending"
        if at is not None and number not in done:
            state = f"applied {(iso(int(at) * SECOND) or '').replace('T', ' ').replace('Z', ' UTC')}"
        rows.append((number, step.migration.phase, step.migration.name, state))
    call.screen.table(("number", "phase", "file", "state"), rows, right="number")
    applied = sum(step.applied_at is not None for step in steps)
    call.screen.say(f"{masked(call.url)}: schema {applied} of {len(steps)}, durable")
    if _blocked(steps, call.args.phase) and not coming:
        call.screen.note("the pending migrations of this phase follow the other phase: apply that first")
    elif applied < len(steps) and not coming:
        call.screen.note("the rest belongs to another phase: apply `post` when no old version runs any more")


COMMANDS = (
    Command(
        "migrate",
        "create the store or bring its schema up to date, and show its version",
        _migrate,
        """
forebay migrate
forebay migrate --store postgresql://app@db.example/app --phase pre
forebay migrate --shared --store sqlite:///site.db
forebay migrate --dry-run || echo "migrations are pending"
""",
        _arguments,
    ),
)
