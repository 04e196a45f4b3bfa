"""A move whose process is killed after any of its writes goes on when it is repeated: every job runs once, in order."""

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from forebay.cli import main
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.core.policy import InOrder
from forebay.core.spec import QueueSpec
from forebay.store.cells.moving import Mover
from forebay.store.cells.store import CellsStore
from forebay.store.open import open_store
from forebay.store.protocol import Want
from tests.stores.openers import cells_file

MOVE = """
import os, signal, sys
from forebay.store.cells.moving import Mover
from forebay.store.open import open_store

store = open_store(sys.argv[1])
mover = Mover(store.backend.group, lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == sys.argv[2] else None)
mover.start(["mail"], "a", "b")
mover.advance()
"""


@pytest.mark.parametrize(
    "write",
    [
        "closing",
        "closed",
        pytest.param("prepared", marks=pytest.mark.nightly),
        pytest.param("draining", marks=pytest.mark.nightly),
    ],
)
def test_a_move_that_is_killed_goes_on(write: str, tmp_path: Path) -> None:
    path = tmp_path / "cells.toml"
    path.write_text(cells_file({name: f"sqlite:///{tmp_path}/{name}.db" for name in "ab"}, ["a"]))
    url = f"cells:{path}"
    with closing(open_store(url)) as store:
        assert isinstance(store, CellsStore)
        store.put_spec(QueueSpec(name="mail", eligibility=InOrder(per="tenant")))
        drafts = [Draft("work", number, queue="mail", tenant="t") for number in range(6)]
        store.enqueue(drafts[:2])
        killed = subprocess.run([sys.executable, "-c", MOVE, url, write], check=False)
        assert killed.returncode == -signal.SIGKILL
        store.enqueue(drafts[2:4])
        assert main(["cells", "move", "mail", "--from", "a", "--to", "b", "--no-wait", "--store", url]) == 0
        store.enqueue(drafts[4:])
        ran = []
        while True:
            Mover(store.backend.group).advance()
            leases = store.claim([Want("mail", 10)], "w", seconds(60))
            if not leases:
                break
            ran += [lease.job.payload for lease in leases]
            store.settle([(lease, Ack()) for lease in leases])
        assert ran == list(range(6))
