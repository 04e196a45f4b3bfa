"""The files of the product that a plain job passes: enqueued, claimed, acknowledged, and on record in the ledger.

Counted are files with a function that runs, in a store that has met a job of its kind before; `make lines` prints it.
"""

import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from types import FrameType

import forebay
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay_proof.servers.postgres import PostgresServer

PRODUCT = Path(forebay.__file__).parent


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


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, PostgresServer() as server:
        urls = ("memory://", f"sqlite:///{directory}/jobs.db", server.create_database())
        for name, url in zip(("memory", "sqlite", "postgres"), urls, strict=True):
            print(f"{name:16} {len(files_passed(url)):8,}  files that a plain job passes")


if __name__ == "__main__":
    main()
