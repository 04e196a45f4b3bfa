"""`worker` and `dev`: run an app's jobs, in this process or under a supervisor, or with hot reload.

On SIGTERM and ctrl-c both drain and exit with code 0; a second signal ends them without waiting.
"""

import os
import signal
import sys
from argparse import SUPPRESS, ArgumentParser
from datetime import timedelta
from importlib.util import find_spec
from threading import Event, Thread
from typing import Any

from forebay.cli.argtypes import count, directory, duration, fraction
from forebay.cli.command import Command, Invocation, log_format_argument, use_log_format
from forebay.cli.exits import FAILED, OK
from forebay.cli.reload import Reloader
from forebay.cli.resolve_store import masked
from forebay.cli.serve import PORT, ServerProcess, port
from forebay.cli.target import load, opened_by, queues_of
from forebay.client import Forebay
from forebay.core.errors import Invalid
from forebay.core.humanize import many
from forebay.store.protocol import Capabilities
from forebay.work.log_setup import FORMAT, configure_logging
from forebay.work.options import Options


def _shared_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("app", metavar="MODULE:NAME", help="the app object, such as app:fb")
    parser.add_argument(
        "--queues",
        metavar="A[=N],B",
        help="the queues to serve, with weights if given (default: those of the app's jobs)",
    )
    parser.add_argument("--concurrency", type=count, metavar="N", help="jobs at once in each process (default: 64)")
    parser.add_argument(
        "--visibility-timeout",
        type=duration,
        metavar="SECONDS",
        help="a dead worker's jobs are retried after this (default: 30)",
    )


def _worker_arguments(parser: ArgumentParser) -> None:
    _shared_arguments(parser)
    parser.add_argument(
        "--processes", type=count, metavar="M", help="supervise M processes (default: run in this process)"
    )
    parser.add_argument(
        "--claim-batch",
        type=count,
        metavar="N",
        help="at most N jobs per claim, fewer where handlers take long (default: 500)",
    )
    parser.add_argument(
        "--drain-timeout", type=duration, metavar="SECONDS", help="how long running jobs may take to end (default: 25)"
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=duration,
        metavar="SECONDS",
        help="how long shutdown hooks may take after that (default: 5)",
    )
    parser.add_argument(
        "--retry-budget", type=fraction, metavar="FRACTION", help="retries are at most this fraction of all runs: 0.2"
    )
    parser.add_argument(
        "--quarantine-processes",
        type=count,
        metavar="N",
        help="processes for jobs whose workers died, one job at a time in each (default: 2)",
    )
    parser.add_argument(
        "--metrics", metavar="[HOST:]PORT", help="serve Prometheus metrics, on loopback unless HOST is given: 9464"
    )
    log_format_argument(parser)
    parser.add_argument("--on-spark", metavar="MASTER", help="run workers as Spark tasks until the queues are empty")
    parser.add_argument("--tasks", type=count, metavar="N", help="workers on Spark (default: one per core)")
    parser.add_argument(
        "--for", type=duration, dest="limit", metavar="DURATION", help="at most, on Spark (default: 1h)"
    )
    parser.add_argument("--parent", type=int, metavar="PID", help=SUPPRESS)


def _options(args: Any, app: Forebay) -> Options:
    weights = weighted(args.queues) if args.queues is not None else dict.fromkeys(queues_of(app), None)
    given = {
        "concurrency": args.concurrency,
        "claim_batch": args.claim_batch,
        "lease_for": args.visibility_timeout,
        "drain_timeout": args.drain_timeout,
        "shutdown_timeout": args.shutdown_timeout,
        "retry_budget": args.retry_budget,
        "metrics": args.metrics,
        "quarantine_processes": getattr(args, "quarantine_processes", None),
    }
    try:
        return Options(
            queues=tuple(weights),
            weights={queue: weight for queue, weight in weights.items() if weight is not None},
            **{name: value for name, value in given.items() if value is not None},
        )
    except Invalid as error:
        option = "visibility_timeout" if error.field == "lease_for" else error.field
        flag = f"--{option.replace('_', '-')}" if hasattr(args, option) else option
        raise Invalid(flag, error.reason, error.remedy) from None


def weighted(words: str) -> dict[str, int | None]:
    """Queues and their weights, from `mail=3,media`."""
    weights: dict[str, int | None] = {}
    for word in words.split(","):
        name, equals, number = (part.strip() for part in word.partition("="))
        if equals and not (number.isascii() and number.isdigit()):
            raise Invalid("--queues", f"the weight {number!r} of {name} is not a number", "write mail=3,media")
        weights[name] = int(number) if equals else None
    return weights


def _worker(call: Invocation) -> int:
    use_log_format(call.args)
    app = load(call.args.app, call.args.store)
    options = _options(call.args, app)
    if call.args.on_spark is None and (call.args.tasks or call.args.limit):
        raise Invalid("--tasks and --for", "they need --on-spark", "give a master: --on-spark local[4]")
    able = opened_by(app).capabilities
    processes: int | None = call.args.processes
    if able.processes == "one" and (processes or 1) > 1:
        app.close()
        raise Invalid(
            "processes", f"{masked(app.url)} belongs to one process", "use sqlite:///jobs.db, or --processes 1"
        )
    _banner(call, app, options, able)
    if call.args.on_spark is not None:
        return _on_spark(call, app, options)
    configure_logging()
    if call.args.parent:
        watch_parent(call.args.parent)
    code = _work(call.args.app, app, options, None if able.processes == "one" else processes)
    app.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that hangs in a handler must not keep a drained process alive.
    os._exit(code)


def _work(target: str, app: Forebay, options: Options, processes: int | None) -> int:
    if processes is None:
        from forebay.work.worker import Worker

        return Worker(app, options, target=target).run()
    from forebay.work.supervisor import Supervisor

    return Supervisor(target, app, options, processes).run()


def _on_spark(call: Invocation, app: Forebay, options: Options) -> int:
    """Workers as Spark tasks; exit code 1 when jobs were left."""
    from forebay.cli.spark_commands import absolute_url, needing_spark, spark_of

    args = call.args
    before = sum(queue.depth for queue in app.backlog(*options.queues))
    app.close()
    args.master = args.on_spark
    with needing_spark():
        from forebay.spark.fleet import drain

        limit = 3600.0 if args.limit is None else args.limit.total_seconds()
        with spark_of(call) as spark:
            shifts = drain(spark, args.app, absolute_url(app.url), options, tasks=args.tasks, limit=limit)
    after = sum(queue.depth for queue in app.backlog(*options.queues))
    app.close()
    seconds = max(shift.seconds for shift in shifts)
    repeated = sum(shift.attempt > 0 for shift in shifts)
    if call.screen.as_json:
        call.screen.emit({"tasks": shifts, "before": before, "after": after, "seconds": seconds})
    else:
        restart = f", {many(repeated, 'task')} started anew" if repeated else ""
        call.screen.say(
            f"{before:,} open jobs, now {after:,}, by {many(len(shifts), 'task')} in {seconds:.1f} s{restart}"
        )
    return OK if all(shift.empty for shift in shifts) else FAILED


def watch_parent(parent: int) -> None:
    """Drain when the parent process is gone, also if it went before this call."""

    def watch() -> None:
        while os.getppid() == parent:
            Event().wait(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=watch, name="forebay-parent", daemon=True).start()


def _banner(call: Invocation, app: Forebay, options: Options, able: Capabilities) -> None:
    """The store, jobs, queues and schedules of this worker."""
    durable = "durable" if able.durable else "not durable: a crash loses every job"
    facts = {
        "store": f"{masked(app.url)} ({able.name}, {durable})",
        "jobs": ", ".join(sorted(app.registry)) or "none yet: decorate a function with @fb.job",
        "queues": ", ".join(f"{q} ({options.weights[q]})" if q in options.weights else q for q in options.queues),
        "cron": ", ".join(f"{name} ({table.rule})" for name, (table, _) in sorted(app.timetables.items())) or None,
    }
    if call.screen.as_json:
        call.screen.emit(facts)
    else:
        call.screen.facts(list(facts.items()))
    unserved = sorted(set(queues_of(app)) - set(options.queues)) if app.registry else []
    if unserved:
        call.screen.note(f"not served here: {', '.join(unserved)}")
    sys.stdout.flush()


def _dev_arguments(parser: ArgumentParser) -> None:
    _shared_arguments(parser)
    parser.add_argument("--processes", type=count, default=1, metavar="M", help="worker processes (default: 1)")
    ports = f"the server's port (default: {PORT}; 0: any)"
    parser.add_argument("--port", type=port, default=PORT, metavar="N", help=ports)
    parser.add_argument("--no-server", action="store_true", help="only the worker, no dashboard")
    watch = "restart when code below DIR changes; may be repeated (default: the package of the app)"
    parser.add_argument("--watch", type=directory, action="append", default=[], metavar="DIR", help=watch)
    log_format_argument(parser, "console")


def _dev(call: Invocation) -> int:
    """The worker is restarted at every change; the server keeps running, so that its sessions survive."""
    args = call.args
    os.environ.setdefault(FORMAT, "console")
    use_log_format(args)
    words = [args.app, "--processes", str(args.processes), "--drain-timeout", "5", "--parent", str(os.getpid())]
    for flag, value in {
        "--queues": args.queues,
        "--concurrency": args.concurrency,
        "--visibility-timeout": args.visibility_timeout,
        "--store": args.store,
    }.items():
        if value is not None:
            words += [flag, f"{value.total_seconds():g}" if isinstance(value, timedelta) else str(value)]
    command = [sys.executable, "-m", "forebay", "worker", *words]
    if args.no_server or find_spec("fastapi") is None or find_spec("uvicorn") is None:
        if not args.no_server:
            call.screen.note("no dashboard: it needs pip install 'forebay[server]'")
        return Reloader(args.app, command, call.screen.note, watch=args.watch).run()
    server = ServerProcess(args.app, args.store, args.port)
    reloader = Reloader(args.app, command, call.screen.note, server.restart, args.watch)
    with server:
        return reloader.run()


COMMANDS = (
    Command(
        "dev",
        "run an app for development: jobs, schedules, dashboard, hot reload",
        _dev,
        """
forebay dev app:fb
forebay dev shop.jobs:fb --processes 2
""",
        _dev_arguments,
        takes_json=False,
    ),
    Command(
        "worker",
        "run an app's jobs and schedules",
        _worker,
        """
forebay worker app:fb
forebay worker app:fb --queues mail,media --concurrency 16 --processes 4
FOREBAY_URL=sqlite:////var/lib/app/jobs.db forebay worker app:fb --drain-timeout 60
forebay worker app:fb --metrics 9464
forebay worker app:fb --on-spark 'local[4]' --for 10m
""",
        _worker_arguments,
    ),
)
