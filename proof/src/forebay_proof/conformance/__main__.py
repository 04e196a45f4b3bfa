"""`python -m forebay_proof.conformance URL`: check a store against the contract, and print which promises it keeps.

Every case gets a fresh store. Where the URL names a directory, each case works in a sub-directory of its own; those of
passed cases are removed, those of failed ones are left for inspection. Where it names a Postgres database, each case
works in a scratch database on the same server, which is dropped afterwards; the named one is not touched.
Exit code 0: nothing failed; 1: something did; 2: the arguments are invalid.
"""

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import ForebayError, Invalid
from forebay.store.connection_pool import masked
from forebay.store.open import open_store
from forebay.store.protocol import Store
from forebay_proof.conformance import Case, CaseResult, Status, cases, run
from forebay_proof.servers.process import ServerUnavailable

_EXAMPLES = """\
examples:
  python -m forebay_proof.conformance memory://
  python -m forebay_proof.conformance memory:///var/tmp/trial --only 'leases/*'
  python -m forebay_proof.conformance postgresql://localhost/trial --only leases
  python -m forebay_proof.conformance redis://localhost --only settling
  python -m forebay_proof.conformance --list --only stale

a store of your own is checked from Python:
  from forebay_proof.conformance import run
  results = run(lambda clock: MyStore(clock=clock))
"""


class Location:
    """Where the cases of one run keep their stores; `reset` moves on to an empty location."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        # After three slashes a file of SQLite is relative, that of other stores is absolute.
        prefix, path = (
            ("sqlite:///", parts.path[1:]) if parts.scheme == "sqlite" else (f"{parts.scheme}://", parts.path)
        )
        self.shown = url
        self._url = url
        self._prefix = prefix
        self._root: Path | None = None
        self._count = 0
        if path not in ("", "/") and not parts.netloc:
            self._root = Path(unquote(path)).absolute() / f"conformance-{token_hex(4)}"

    @property
    def directory(self) -> Path | None:
        """Where the present case works, if it works on disk."""
        return None if self._root is None else self._root / f"{self._count:03}"

    def open(self, clock: Clock | None) -> Store:
        if self._root is None or self.directory is None:
            return open_store(self._url, clock=clock)
        self._root.mkdir(parents=True, exist_ok=True)
        return open_store(f"{self._prefix}{quote(str(self.directory))}", clock=clock)

    def reset(self) -> None:
        self._count += 1

    def tidy(self, failed: bool) -> None:
        """Remove what the present case left: a directory, or a file and those beside it."""
        if self._root is None or failed:
            return
        for path in self._root.glob(f"{self._count:03}*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def close(self) -> None:
        """Remove what is empty; what failed stays."""
        if self._root is not None and self._root.is_dir() and not any(self._root.iterdir()):
            self._root.rmdir()


class Databases(Location):
    """The same on a Postgres server: a scratch database for each case."""

    def __init__(self, url: str) -> None:
        from forebay_proof.servers.scratch import Scratch

        super().__init__("memory://")
        self.shown = masked(url)
        self._scratch = Scratch(url)
        self._current: str | None = None

    def open(self, clock: Clock | None) -> Store:
        if self._current is None:
            self._current = self._scratch.create()
        return open_store(self._current, clock=clock)

    def reset(self) -> None:
        if self._current is not None:
            self._scratch.drop(self._current)
        self._current = None

    def tidy(self, failed: bool) -> None:
        """A database is of no use once its test is over."""

    def close(self) -> None:
        self.reset()


class Prefixes(Location):
    """The same on a Redis server: a prefix of its own for each case, whose keys are deleted afterwards."""

    def __init__(self, url: str) -> None:
        from forebay_proof.servers.scratch_keys import ScratchKeys

        super().__init__("memory://")
        self._keys = ScratchKeys(url)
        self.shown = self._keys.shown

    def open(self, clock: Clock | None) -> Store:
        return open_store(self._keys.url, clock=clock)

    def reset(self) -> None:
        self._keys.renew()

    def tidy(self, failed: bool) -> None:
        """Keys are of no use once their test is over."""

    def close(self) -> None:
        self._keys.renew()


_SERVERS: Final[dict[str, tuple[type[Databases] | type[Prefixes], str, str]]] = {
    **dict.fromkeys(("postgresql", "postgres"), (Databases, "psycopg", "postgres")),
    **dict.fromkeys(("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"), (Prefixes, "redis", "redis")),
}


def location_of(url: str) -> Location:
    server = _SERVERS.get(urlsplit(url).scheme)
    if server is None:
        return Location(url)
    location, driver, extra = server
    try:
        return location(url)
    except ModuleNotFoundError as error:
        raise Invalid("store URL", f"{driver} is not installed", f"pip install 'forebay[{extra}]'") from error


class Printer:
    """One line a theme as it ends, failures in full, and the sum."""

    def __init__(self, location: Location, quiet: bool) -> None:
        self._location = location
        self._quiet = quiet
        self._theme = ""
        self._results: list[CaseResult] = []

    def add(self, result: CaseResult) -> None:
        failed = result.status is Status.FAILED
        self._location.tidy(failed)
        if result.case.theme != self._theme:
            self.flush()
            self._theme = result.case.theme
        self._results.append(result)
        if failed:
            where = "" if self._location.directory is None else f"\n  its files: {self._location.directory}"
            self._print(f"FAILED {result.case.theme}/{result.case.name}{where}\n{_indented(result.detail)}")

    def flush(self) -> None:
        if self._results:
            self._print(f"{self._theme:<12} {summary(self._results)}")
        self._results = []

    def _print(self, text: str) -> None:
        if not self._quiet:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def summary(results: Sequence[CaseResult]) -> str:
    count = Counter(result.status for result in results)
    unclaimed = f", {count[Status.NOT_CLAIMED]} not claimed" if count[Status.NOT_CLAIMED] else ""
    return f"{count[Status.PASSED]} passed, {count[Status.FAILED]} failed{unclaimed}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if not __debug__:
        sys.stderr.write("assertions are switched off, every case would pass: run Python without -O\n")
        return 2
    chosen = cases(options.only)
    if not chosen:
        sys.stderr.write(f"no case matches {options.only!r}; --list shows them all\n")
        return 2
    if options.list:
        sys.stdout.write("".join(f"{case.theme}/{case.name}{_condition(case)}\n" for case in chosen))
        return 0
    if options.url is None:
        sys.stderr.write("name a store to check, for example memory://; --help shows more\n")
        return 2
    try:
        location = location_of(options.url)
    except ForebayError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        location.open(None).close()
    except (ForebayError, OSError, ServerUnavailable) as error:
        sys.stderr.write(f"cannot open {location.shown}: {error}\n")
        location.close()
        return 2
    location.tidy(failed=False)
    return _checked(location, options)


def _checked(location: Location, options: argparse.Namespace) -> int:
    printer = Printer(location, quiet=options.json)
    results = run(
        location.open, reset=location.reset, only=options.only, virtual_time=not options.real_time, report=printer.add
    )
    printer.flush()
    location.close()
    sys.stdout.write(f"{_json(location.shown, results) if options.json else summary(results)}\n")
    return 1 if any(result.status is Status.FAILED for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forebay_proof.conformance",
        description="Hold a store to Forebay's contract. Every case is one promise, checked on a fresh store.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", help="the store, such as memory:// or memory:///directory")
    parser.add_argument("--only", metavar="PATTERN", help="cases that match: theme/*, a_lease*, or a part of the name")
    parser.add_argument("--list", action="store_true", help="show the cases and run none")
    parser.add_argument("--json", action="store_true", help="print one JSON document in the end, nothing else")
    parser.add_argument("--real-time", action="store_true", help="use the store's own clock: slower, nothing injected")
    return parser


def _condition(case: Case) -> str:
    return "" if case.need == "nothing" else f"  (for stores that claim: {case.need})"


def _json(url: str, results: Sequence[CaseResult]) -> str:
    count = Counter(result.status for result in results)
    document = {
        "store": url,
        "passed": count[Status.PASSED],
        "failed": count[Status.FAILED],
        "not_claimed": count[Status.NOT_CLAIMED],
        "cases": [
            {
                "theme": result.case.theme,
                "name": result.case.name,
                "status": result.status.value,
                "seconds": round(result.seconds, 4),
                "detail": result.detail,
            }
            for result in results
        ],
    }
    return msgspec.json.encode(document).decode()


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


if __name__ == "__main__":
    sys.exit(main())
