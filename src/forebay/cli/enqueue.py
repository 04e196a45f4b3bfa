"""`enqueue`: add jobs. It prints only the id of the job on stdout, for scripts."""

import sys
from argparse import ArgumentParser
from typing import Any, Final

from forebay.cli.argtypes import count, duration, json_of, moment, payload_of
from forebay.cli.command import Command, Invocation
from forebay.cli.enqueue_file import enqueue_file
from forebay.cli.exits import FAILED, OK, CommandFailed
from forebay.cli.target import load, opened_by
from forebay.core.errors import ForebayError, Invalid
from forebay.core.instant import Instant, micros
from forebay.core.job import Draft
from forebay.core.limits import MAX_BATCH
from forebay.core.payload import Json
from forebay.core.presence import handled_kinds
from forebay.store.protocol import Receipt
from forebay.work.handler import Handler
from forebay.work.signature import PayloadMismatch
from forebay.work.versions import with_version

_KINDS_SHOWN: Final = 10


def _enqueue_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", nargs="?", help="the kind of job; with --file, for lines without one")
    parser.add_argument(
        "payload", metavar="PAYLOAD", nargs="*", help="one JSON text, or key=value pairs; - reads JSON from stdin"
    )
    parser.add_argument("--queue", help="the queue (default: the handler's with --app, else default)")
    parser.add_argument("--priority", type=int, metavar="N", help="higher is sooner, where the queue uses priorities")
    parser.add_argument("--run-at", metavar="TIME", help="not before this time: 2030-01-31T10:30:00Z, 10:30 or +5m")
    parser.add_argument("--delay", type=duration, metavar="DURATION", help="not before this delay: 90s, 5m, 1h30m")
    parser.add_argument("--key", help="idempotency key: the same key is the same job")
    parser.add_argument("--tenant", help="the tenant, for fair shares and caps")
    parser.add_argument("--subject", help="the subject, for ordering, caps and coalescing")
    parser.add_argument("--cost", type=count, metavar="N", help="slots of caps and rates that it uses")
    parser.add_argument("--max-attempts", type=count, metavar="N", help="how many attempts it has")
    parser.add_argument("--app", metavar="MODULE:NAME", help="check kind and payload against this app, use its store")
    parser.add_argument(
        "--file", metavar="FILE", help="one job per line, as JSON with kind, payload, queue …; - is stdin"
    )
    parser.add_argument("--skip", type=count, metavar="N", default=0, help="with --file: skip the first N lines")


def _enqueue(call: Invocation) -> int:
    args = call.args
    if args.file is not None:
        return enqueue_file(call)
    if args.kind is None:
        raise Invalid("enqueue", "the kind is missing", "write forebay enqueue KIND, or use --file")
    payload = json_of("payload", sys.stdin.buffer.read()) if args.payload == ["-"] else payload_of(args.payload)
    if args.app is None:
        with call.store(create=True) as store:
            receipt = store.enqueue([_draft(args, payload, None, store.now())])[0]
            known = handled_kinds(store.workers("", MAX_BATCH), args.queue or "default")
        if known is not None and args.kind not in known:
            kinds = ", ".join(sorted(known)[:_KINDS_SHOWN])
            call.screen.note(f"no worker of its queue has a handler for {args.kind!r}; they have handlers for {kinds}")
        return _report(call, receipt)
    app = load(args.app, args.store)
    handler = app.registry.get(args.kind)
    if handler is None:
        raise Invalid("kind", f"{args.app} has no job {args.kind!r}", f"it has {', '.join(sorted(app.registry))}")
    try:
        draft = _draft(args, payload, handler, opened_by(app).now())
        handler.signature.unpack(draft.body)
        receipt = app.enqueue_draft(app.codec.encoded(draft))
    except PayloadMismatch as error:
        raise Invalid(error.field, error.reason, f"give what {args.kind} takes") from None
    except ForebayError:
        raise
    except Exception as error:
        # The app's layers of around_enqueue may raise anything.
        why = f"{args.app} refused the job: {type(error).__name__}: {error}; nothing was enqueued"
        raise CommandFailed(why, FAILED) from error
    finally:
        app.close()
    return _report(call, receipt)


def _draft(args: Any, payload: Json, handler: Handler | None, now: Instant) -> Draft:
    return Draft(
        args.kind,
        payload,
        args.queue or (handler.queue if handler else "default"),
        priority=args.priority or 0,
        run_at=moment("run_at", args.run_at, now) if args.run_at else None,
        delay=micros(args.delay) if args.delay else 0,
        key=args.key,
        tenant=args.tenant,
        subject=args.subject,
        max_attempts=args.max_attempts or (handler.max_attempts if handler else None),
        meta=with_version(None, handler.signature.versions.current) if handler else None,
        cost=args.cost or (handler.cost if handler else 1),
    )


def _report(call: Invocation, receipt: Receipt) -> int:
    if call.screen.as_json:
        call.screen.emit({name: getattr(receipt, name) for name in Receipt.__struct_fields__})
        return OK
    call.screen.say(" ".join(map(str, receipt.copies or [receipt.id])))
    if not receipt.id:
        call.screen.note("dropped: the broker has no route for this kind")
    if receipt.duplicate:
        call.screen.note("a duplicate: the key was used before, this is the id of the first job")
    if receipt.merged:
        call.screen.note("merged: a waiting job of this subject has taken over the payload")
    if not receipt.durable:
        call.screen.note("not durable: a crash of this store loses it")
    return OK


COMMANDS = (
    Command(
        "enqueue",
        "add a job, or a file of jobs",
        _enqueue,
        """
forebay enqueue send_email to=ada@example.com subject=Hello
forebay enqueue resize '{"image": 7, "sizes": [64, 128]}' --queue media --priority 5
forebay enqueue report --run-at 2030-01-31T06:00:00Z --key report-2030-01
forebay enqueue send_email to=ada --app app:fb      # checked against the function's own types
forebay enqueue --file jobs.ndjson                  # {"kind": "resize", "payload": {"image": 7}} a line
""",
        _enqueue_arguments,
    ),
)
