"""`serve`: the HTTP side of a store, and how `dev` starts one beside its worker.

It listens on this machine alone unless it is told otherwise, and wants a key for everything but its health. SIGTERM
and ctrl-c drain: the code is 0 then.
"""

import os
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from forebay.cli.command import Call, Command, log_format_argument, use_log_format
from forebay.cli.exits import FAILED, USAGE, CommandFailed
from forebay.cli.place import file_of, masked, opened
from forebay.cli.target import load, opened_by
from forebay.cli.words import count, length
from forebay.client import Forebay
from forebay.core.errors import Invalid
from forebay.store.open import open_store
from forebay.store.protocol import Store
from forebay.work.log_setup import configure_logging

PORT: Final = 8321
_STOP_SECONDS: Final = 5.0


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise ArgumentTypeError(f"{text[:20]!r} is not a number in 0 … 65535; 0 is any that is free")
    return int(text)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine alone)")
    parser.add_argument("--port", type=port, default=PORT, metavar="N", help=f"the port (default: {PORT}; 0: any)")
    parser.add_argument("--app", metavar="MODULE:NAME", help="an app: its kinds find their queues, as app:fb")
    parser.add_argument("--drain-timeout", type=length, metavar="SECONDS", help="for requests under way (default: 10)")
    parser.add_argument("--tls-cert", metavar="FILE", help="the server's certificate, with its chain")
    parser.add_argument("--tls-key", metavar="FILE", help="the key of the certificate")
    parser.add_argument("--tls-client-ca", metavar="FILE", help="clients show a certificate of this authority")
    parser.add_argument("--client-roles", metavar="FILE", help="what client certificates may do, by name")
    parser.add_argument("--jwt", metavar="FILE", help="whose JWTs count: issuer, audience, jwks … as JSON")
    parser.add_argument("--insecure-plain-http", action="store_true", help="beyond this machine without TLS")
    parser.add_argument("--no-dashboard", action="store_true", help="the API alone")
    parser.add_argument("--no-metrics", action="store_true", help="no /metrics")
    parser.add_argument("--no-tend", action="store_true", help="leave schedules and expired leases to workers")
    parser.add_argument(
        "--count-whole", action="store_true", help="counters of /metrics from the ledger's first record"
    )
    parser.add_argument(
        "--max-connections", type=count, metavar="N", help="connections at once (default: by its files)"
    )
    parser.add_argument("--lake", metavar="DIR", help="where the dashboard finds the audit's verdict")
    parser.add_argument("--one-time", action="store_true", help="print a link that opens the dashboard, once")
    log_format_argument(parser)
    parser.add_argument("--tied", type=int, metavar="PID", help=SUPPRESS)


def _settings(args: Any) -> Any:
    from forebay.serve.settings import ServeSettings
    from forebay.spark.lake import lake_directory

    drain = {} if args.drain_timeout is None else {"drain": args.drain_timeout.total_seconds()}
    return ServeSettings(
        host=args.host,
        port=args.port,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_client_ca=args.tls_client_ca,
        insecure=args.insecure_plain_http,
        dashboard=not args.no_dashboard,
        metrics=not args.no_metrics,
        tend=not args.no_tend,
        count_whole=args.count_whole,
        lake=None if args.lake is None else str(lake_directory(args.lake)),
        connections_most=args.max_connections,
        **drain,
    )


def _door(args: Any, store: Store) -> Any:
    from forebay.serve.security.certificates import Certificates
    from forebay.serve.security.door import Door
    from forebay.serve.security.tokens import TokenRules, Tokens

    others: dict[str, Any] = {}
    if args.jwt is not None:
        try:
            others["tokens"] = Tokens(msgspec.json.decode(Path(args.jwt).read_bytes(), type=TokenRules))
        except (OSError, msgspec.DecodeError) as error:
            raise Invalid("jwt", str(error), 'write {"issuer": "…", "audience": "…", "jwks": "…"}') from None
    if args.client_roles is not None:
        others["certificates"] = Certificates.from_file(Path(args.client_roles))
    return Door.of(store, **others)


def _opened(call: Call) -> tuple[Store, Forebay | None]:
    """The store, made if it was not there; and the app, if one is named."""
    app = None if call.args.app is None else load(call.args.app, call.args.store)
    configure_logging()
    if app is not None:
        if call.args.tied and urlsplit(app.url).scheme == "memory":
            raise CommandFailed("no dashboard: its store belongs to one process, and the worker is that", USAGE)
        return opened_by(app), app
    if urlsplit(call.url).scheme == "memory" and file_of(call.url) is None:
        return open_store(call.url), None
    return opened(call.url, create=True), None


def _serve(call: Call) -> int:
    try:
        from forebay.serve.app import create_app
        from forebay.serve.run import run
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error.name} is not installed; pip install 'forebay[server]'", USAGE) from error
    from forebay.cli.run import watch_parent
    from forebay.serve.security.bind import check_bind

    args, settings = call.args, _settings(call.args)
    if args.tied and args.port and _taken(settings):
        settings = msgspec.structs.replace(settings, port=0)
    use_log_format(args)
    store, app = _opened(call)
    try:
        door = _door(args, store)
        ways = {
            "keys": len(door.keyring),
            "tokens": args.jwt is not None,
            "certificates": args.client_roles is not None,
        }
        known = [way for way, there in ways.items() if there]
        warnings = check_bind(args.host, tls=settings.tls, ways_in=known, insecure=args.insecure_plain_http)
        served = create_app(store, settings, door=door, registry=None if app is None else app.registry)
        if args.tied:
            watch_parent(args.tied)

        def ready(url: str) -> None:
            for warning in warnings:
                call.screen.note(warning)
            _say(call, served, url, known, call.url if app is None else app.url)

        return run(served, settings, ready)
    except OSError as error:
        raise CommandFailed(f"cannot listen on {args.host}:{args.port}: {error.strerror or error}", FAILED) from error
    finally:
        store.close()


def _taken(settings: Any) -> bool:
    """Beside a worker any port will do: two apps may be developed at once."""
    from forebay.serve.run import listener

    try:
        listener(settings).close()
    except OSError:
        return True
    return False


def _say(call: Call, served: Any, url: str, ways: list[str], store_url: str) -> None:
    """Where it listens, on what, and how to get in."""
    ground = served.state.ground
    able = ground.store.capabilities
    facts: dict[str, Any] = {
        "url": url,
        "store": f"{masked(store_url)} ({able.name}, {'durable' if able.durable else 'not durable'})",
        "admits": ", ".join(ways) or "nobody yet: forebay keys create --role admin",
        "dashboard": f"{url}/ui" if ground.settings.dashboard else None,
    }
    if call.args.one_time:
        facts["dashboard"] = f"{url}/ui/login?token={_token(ground)}"
    if call.screen.as_json:
        call.screen.emit(facts | {"pid": os.getpid()})
    else:
        call.screen.facts(list(facts.items()))
    sys.stdout.flush()


def _token(ground: Any) -> str:
    """Opens one session of everything, for whoever reads this terminal."""
    from forebay.serve.actor import Actor, Role

    token: str = ground.door.sessions.one_time(Actor("dev", frozenset({Role.ADMIN})))
    return token


class Beside:
    """A server in a process of its own, for as long as the block lasts; it ends by itself when this process does.

    `again` starts it anew if it has ended: the code of the app may be sound by now.
    """

    def __init__(self, target: str, store: str | None, port: int) -> None:
        words = ["--app", target, "--port", str(port), "--one-time", "--drain-timeout", "1"]
        words += ["--tied", str(os.getpid())]
        words += [] if store is None else ["--store", store]
        self._command = [sys.executable, "-m", "forebay", "serve", *words]
        self._child: subprocess.Popen[bytes] | None = None

    def again(self) -> None:
        if self._child is None or self._child.poll() is not None:
            self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)

    def __enter__(self) -> "Beside":
        self.again()
        return self

    def __exit__(self, *_: object) -> None:
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            with suppress(subprocess.TimeoutExpired):
                child.wait(_STOP_SECONDS)


COMMANDS = (
    Command(
        "serve",
        "serve a store over HTTP: the API, metrics and the dashboard",
        _serve,
        """
forebay serve
forebay serve --store postgresql://localhost/jobs --app shop.jobs:fb
forebay serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key
""",
        _arguments,
    ),
)
