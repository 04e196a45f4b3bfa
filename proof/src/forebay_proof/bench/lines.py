"""Lines of Python, SQL and Lua by room, and the files that a plain job passes: `make lines`.

A plain job is enqueued, claimed, acknowledged, and on record in the ledger. Counted are files with a function that
runs, in a store that has met a job of its kind before. With --quick the stores are left out.
"""

import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType

from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay_proof.bench.measure import Figure, arguments, run, taken
from forebay_proof.servers.postgres import PostgresServer

ROOT = Path(__file__).parents[4]
PRODUCT, PROOF = ROOT / "src" / "forebay", ROOT / "proof" / "src" / "forebay_proof"
JOB_PATH = ("core", "engine", "store", "work", "client.py")
"""The rooms that a plain job passes from enqueue to the ledger."""


def lines(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.suffix in (".py", ".sql", ".lua")]
    return sum(len(each.read_text().splitlines()) for each in files)


def files_passed(url: str) -> list[str]:
    """By their paths in the product."""
    store = open_store(url)
    passed: set[Path] = set()

    def entered(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            passed.add(Path(frame.f_code.co_filename))

    try:
        _run_one(store)
        sys.setprofile(entered)
        try:
            _run_one(store)
        finally:
            sys.setprofile(None)
    finally:
        store.close()
    return sorted(str(path.relative_to(PRODUCT)) for path in passed if path.is_relative_to(PRODUCT))


def _run_one(store: Store) -> None:
    store.enqueue([Draft("greet", {"name": "Ada"})])
    leases = store.claim([Want("default", 1)], "bench", timedelta(seconds=30))
    store.settle([(lease, Ack()) for lease in leases])


def figures(quick: bool) -> Iterator[Figure]:
    for package in PRODUCT, PROOF:
        yield taken(package.name, "lines", lines(package))
        for path in sorted(package.iterdir()):
            if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__"):
                yield taken(f"{package.name}/{path.name}", "lines", lines(path), package.name)
    yield taken("job-path", "lines", sum(lines(PRODUCT / name) for name in JOB_PATH), PRODUCT.name)
    yield taken("tests", "lines", lines(ROOT / "tests"), PRODUCT.name)
    if quick:
        return
    with tempfile.TemporaryDirectory() as directory, PostgresServer() as server:
        urls = ("memory://", f"sqlite:///{directory}/jobs.db", server.create_database())
        for name, url in zip(("memory", "sqlite", "postgres"), urls, strict=True):
            yield taken(f"plain-job/{name}", "files", len(files_passed(url)))


def main() -> None:
    args = arguments(__doc__)
    run(list(figures(args.quick)), rounds=1, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
