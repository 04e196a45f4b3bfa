"""`serve`: the HTTP server of a store, and the server process that `dev` runs beside its worker.

It listens on loopback by default and needs a key for everything but its health. On SIGTERM and ctrl-c it drains and
exits with code 0.
"""

import os
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from forebay.cli.argtypes import count, duration
from forebay.cli.command import Command, Invocation, log_format_argument, use_log_format
from forebay.cli.exits import FAILED, USAGE, CommandFailed
from forebay.cli.resolve_store import masked, open_at, store_path
from forebay.cli.target import load, opened_by
from forebay.client import Forebay
from forebay.core.errors import Invalid
from forebay.store.open import open_store
from forebay.store.protocol import Store
from forebay.work.log_setup import configure_logging

PORT: Final = 8321
_STOP_SECONDS: Final = 5.0


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise ArgumentTypeError(f"{text[:20]!r} is not in 0 … 65535; 0 is any free port")
    return int(text)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=port, default=PORT, metavar="N", help=f"the port (default: {PORT}; 0: any)")
    parser.add_argument("--app", metavar="MODULE:NAME", help="an app whose handlers supply default queues: app:fb")
    parser.add_argument(
        "--drain-timeout", type=duration, metavar="SECONDS", help="for requests in flight (default: 10)"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="the server's certificate, with its chain")
    parser.add_argument("--tls-key", metavar="FILE", help="the key of the certificate")
    parser.add_argument("--tls-client-ca", metavar="FILE", help="require client certificates of this authority")
    parser.add_argument("--client-roles", metavar="FILE", help="roles of client certificates by name, as JSON")
    parser.add_argument("--jwt", metavar="FILE", help="accept JWTs: issuer, audience, jwks … as JSON")
    insecure = "allow an address other than loopback without TLS"
    parser.add_argument("--insecure-plain-http", action="store_true", help=insecure)
    parser.add_argument("--no-dashboard", action="store_true", help="only the API")
    parser.add_argument("--no-metrics", action="store_true", help="no /metrics")
    parser.add_argument("--no-maintenance", action="store_true", help="leave schedules and expired leases to workers")
    parser.add_argument(
        "--count-from-start", action="store_true", help="start the counters of /metrics at the ledger's first record"
    )
    parser.add_argument(
        "--max-connections", type=count, metavar="N", help="at most N connections (default: by the open file limit)"
    )
    parser.add_argument("--lake", metavar="URI", help="the lake whose audit verdict the dashboard shows")
    parser.add_argument("--one-time", action="store_true", help="print a one-time link to the dashboard")
    log_format_argument(parser)
    parser.add_argument("--parent", type=int, metavar="PID", help=SUPPRESS)


def _settings(args: Any) -> Any:
    from forebay.serve.settings import ServeSettings
    from forebay.spark.lake import lake_uri

    lake = None if args.lake is None else lake_uri(args.lake)
    drain = {} if args.drain_timeout is None else {"drain": args.drain_timeout.total_seconds()}
    return ServeSettings(
        host=args.host,
        port=args.port,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_client_ca=args.tls_client_ca,
        dashboard=not args.no_dashboard,
        metrics=not args.no_metrics,
        maintain=not args.no_maintenance,
        count_from_start=args.count_from_start,
        lake=None if lake is None or "://" in lake else lake,
        max_connections=args.max_connections,
        **drain,
    )


def verdict_reader(location: str | None) -> Callable[[], bytes | None] | None:
    """Of a lake on an object store, whose client has to be installed."""
    from forebay.spark.lake import VERDICT, Lake, lake_uri

    lake = None if location is None else Lake(lake_uri(location))
    if lake is None or lake.is_local:
        return None
    lake.files("")
    return partial(lake.read, VERDICT)


def _authenticator(args: Any, store: Store) -> Any:
    from forebay.serve.security.auth import Authenticator, Certificates

    others: dict[str, Any] = {}
    if args.jwt is not None:
        others["tokens"] = _token_verifier(Path(args.jwt))
    if args.client_roles is not None:
        others["certificates"] = Certificates.from_file(Path(args.client_roles))
    return Authenticator.of(store, **others)


def _token_verifier(rules: Path) -> Any:
    try:
        from forebay.serve.security.tokens import TokenRules, TokenVerifier
    except ModuleNotFoundError as error:
        raise CommandFailed(f"--jwt: {error.name} is not installed; pip install 'forebay[jwt]'", USAGE) from error
    try:
        return TokenVerifier(msgspec.json.decode(rules.read_bytes(), type=TokenRules))
    except (OSError, msgspec.DecodeError) as error:
        raise Invalid("jwt", str(error), 'write {"issuer": "…", "audience": "…", "jwks": "…"}') from None


def _opened(call: Invocation) -> tuple[Store, Forebay | None]:
    """The store, created if it does not exist, and the app, if one is given."""
    app = None if call.args.app is None else load(call.args.app, call.args.store)
    configure_logging()
    if app is not None:
        if call.args.parent and urlsplit(app.url).scheme == "memory":
            raise CommandFailed("no dashboard: only one process can open this store, and the worker does", USAGE)
        return opened_by(app), app
    if urlsplit(call.url).scheme == "memory" and store_path(call.url) is None:
        return open_store(call.url), None
    return open_at(call.url, create=True), None


def _serve(call: Invocation) -> int:
    try:
        from forebay.serve.app import create_app
        from forebay.serve.run import run
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error.name} is not installed; pip install 'forebay[server]'", USAGE) from error
    from forebay.cli.worker import watch_parent
    from forebay.serve.settings import check_bind

    args, settings = call.args, _settings(call.args)
    if args.parent and args.port and _taken(settings):
        settings = msgspec.structs.replace(settings, port=0)
    use_log_format(args)
    store, app = _opened(call)
    try:
        authenticator = _authenticator(args, store)
        ways = {
            "keys": len(authenticator.keyring),
            "tokens": args.jwt is not None,
            "certificates": args.client_roles is not None,
        }
        known = [way for way, there in ways.items() if there]
        warnings = check_bind(args.host, tls=settings.tls, auth_methods=known, insecure=args.insecure_plain_http)
        served = create_app(
            store,
            settings,
            authenticator=authenticator,
            registry=None if app is None else app.registry,
            layers=None if app is None else app.hooks.enqueue_layers_for(app.registry),
            read_verdict=verdict_reader(args.lake),
        )
        if args.parent:
            watch_parent(args.parent)

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
    """Whether the port is in use; `dev` then takes any free one, so that two apps can run at once."""
    from forebay.serve.run import listener

    try:
        listener(settings).close()
    except OSError:
        return True
    return False


def _say(call: Invocation, served: Any, url: str, ways: list[str], store_url: str) -> None:
    """The URL, the store, how callers authenticate, and the dashboard's URL."""
    context = served.state.context
    able = context.store.capabilities
    facts: dict[str, Any] = {
        "url": url,
        "store": f"{masked(store_url)} ({able.name}, {'durable' if able.durable else 'not durable'})",
        "accepts": ", ".join(ways) or "no keys yet: forebay keys create --role admin",
        "dashboard": f"{url}/ui" if context.settings.dashboard else None,
    }
    if call.args.one_time:
        facts["dashboard"] = f"{url}/ui/login?token={_token(context)}"
    if call.screen.as_json:
        call.screen.emit(facts | {"pid": os.getpid()})
    else:
        call.screen.facts(list(facts.items()))
    sys.stdout.flush()


def _token(context: Any) -> str:
    """A one-time token that opens an admin session."""
    from forebay.serve.actor import Actor, Role

    token: str = context.authenticator.sessions.one_time(Actor("dev", frozenset({Role.ADMIN})))
    return token


class ServerProcess:
    """A server process that runs while the block does; it ends by itself when this process does.

    `restart` starts it again if it has exited: the app's code may import by now.
    """

    def __init__(self, target: str, store: str | None, port: int) -> None:
        words = ["--app", target, "--port", str(port), "--one-time", "--drain-timeout", "1"]
        words += ["--parent", str(os.getpid())]
        words += [] if store is None else ["--store", store]
        self._command = [sys.executable, "-m", "forebay", "serve", *words]
        self._child: subprocess.Popen[bytes] | None = None

    def restart(self) -> None:
        if self._child is None or self._child.poll() is not None:
            # In a group of its own: after a ctrl-c, the SIGTERM of `__exit__` would be its second signal.
            self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self) -> "ServerProcess":
        self.restart()
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
