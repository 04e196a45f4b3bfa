"""A rolling deploy: workers with and without the handler of a new kind share a queue, and no job is lost or charged."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from forebay import Draft, Job, QueueSpec, Store, open_store
from forebay.core.instant import hours
from forebay.core.job import State
from forebay.core.policy import KeepFor
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
OLD = """
from forebay import Forebay

fb = Forebay()

@fb.job
def known() -> None:
    pass
"""
NEW = f"""{OLD}
@fb.job
async def fresh() -> None:
    pass
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "old.py").write_text(OLD)
    (tmp_path / "new.py").write_text(NEW)
    store = open_store(f"sqlite:///{tmp_path}/forebay.db")
    store.put_spec(QueueSpec(name="default", retention=KeepFor(hours(1))))
    yield store
    store.close()


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return {**kept, "PYTHONPATH": str(ROOT / "src")}


def forebay(place: Path, *words: str) -> str:
    command = [sys.executable, "-m", "forebay", *words]
    return subprocess.run(
        command, cwd=place, env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout


@contextmanager
def worker(place: Path, app: str) -> Iterator[None]:
    """At the end it drains, with code 0."""
    command = [sys.executable, "-m", "forebay", "worker", f"{app}:fb", "--processes", "1"]
    with open(place / f"{app}.log", "wb") as output:
        process = subprocess.Popen(command, cwd=place, env=environment(), stdout=subprocess.DEVNULL, stderr=output)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_rolling_deploy_loses_no_job_of_a_new_kind(store: Store, tmp_path: Path) -> None:
    drafts = [Draft("fresh", {}, max_attempts=1)] * 20 + [Draft("known", {}, max_attempts=1)] * 20
    ids = [receipt.id for receipt in store.enqueue(drafts)]

    def jobs() -> list[Job]:
        return [job for job in store.get(ids) if job is not None]

    with ExitStack() as deploy:
        with worker(tmp_path, "old"):
            eventually(lambda: all(job.delivery >= 1 and job.state is not State.RUNNING for job in jobs()))
            assert {(job.kind, job.attempt, job.errors) for job in jobs()} == {("fresh", 0, ()), ("known", 1, ())}
            eventually(lambda: "no worker handles kind fresh" in forebay(tmp_path, "explain", str(ids[0])))
            eventually(lambda: "no worker has a handler for kind fresh of queue default" in forebay(tmp_path, "doctor"))
            deploy.enter_context(worker(tmp_path, "new"))
            eventually(lambda: "no worker has a handler" not in forebay(tmp_path, "doctor"))
        eventually(lambda: all(job.state is State.DONE for job in jobs()))
    assert {(job.kind, job.attempt) for job in jobs()} == {("fresh", 1), ("known", 1)}
    output = (tmp_path / "old.log").read_text()
    assert output.count("uncharged: this worker has no handler for kind fresh") == 1, (
        "it is logged, and not for each job"
    )
    assert "queue default" in output
