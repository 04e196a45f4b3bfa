"""Real runs: producers, a fleet that is killed, a full queue, answers that are lost; and nothing is left running."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

import msgspec
import pytest
from msgspec.structs import replace

from forebay import Invalid, QueueSpec, open_store
from forebay.cli import main
from forebay.core.policy import Bounded
from forebay_proof.faulty import Fault, FaultyStore, scripted
from forebay_proof.lab.audit import NdjsonLines, SentReceipt
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.lab.trial import Trial
from forebay_proof.load.app import EFFECTS, QUEUE
from forebay_proof.load.fleet import APP, Fleet
from forebay_proof.load.generator import Load
from forebay_proof.load.mix import FAST, parse_mix
from forebay_proof.load.producer import LoadProducer
from forebay_proof.processes import alive
from forebay_proof.tally import FOLDER, LATE, Tallies, TallyFile
from tests.waiting import eventually


def test_a_fleet_is_killed_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    pids: set[int] = set()
    killed: list[int] = []
    rng = random.Random(7)

    def kill(fleet: Fleet, _: LabServer) -> None:
        pids.update(fleet.workers(), fleet.supervisors)
        if len(killed) < 2 and len(fleet.workers()) == 2:
            killed.append(fleet.kill_one(rng))

    trial = Trial(store="sqlite", rate=300, seconds=3, mix=parse_mix("s1@0.05"), batch=20)
    outcome = trial.run(tmp_path, disturb=kill)
    assert outcome.verdict.answer == "PASS", outcome.verdict
    assert (outcome.verdict.accepted, outcome.producers.accepted, outcome.producers.missed) == (900, 900, 0)
    assert outcome.verdict.effects + outcome.verdict.dead >= 900
    assert len(killed) == 2
    assert outcome.exit_code == 0
    last = outcome.samples[-1]
    assert (last.depth, last.accepted) == (0, 900)
    assert last.fleet_cpu > 0
    claims = outcome.claims
    assert claims.total > 10
    assert 0 < claims.percentile(50) <= claims.percentile(99) < 3
    assert not [pid for pid in pids if alive(pid)]


def test_the_command_says_what_it_saw() -> None:
    words = "--on sqlite --rate 200 --for 1s --mix fast --batch 10 --processes 1 --json"
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "lab", "load", *words.split()], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    output = msgspec.json.decode(done.stdout)
    assert output["verdict"]["answer"] == "PASS"
    assert output["verdict"]["accepted"] == 200
    assert main(["lab", "load", "--mix", "nonsense"]) == 2


def answers_of(load: Load) -> dict[str, int]:
    """Answers, counted."""
    answers: dict[str, int] = {}
    for lines in NdjsonLines(load.receipts, "receipts").read(SentReceipt):
        for line in lines:
            answers[line.answer] = answers.get(line.answer, 0) + 1
    return answers


def test_a_full_queue_refuses_and_the_receipts_say_so(tmp_path: Path) -> None:
    with LabServer("sqlite") as lab_server:
        store = open_store(lab_server.url)
        store.put_spec(QueueSpec(name=QUEUE, capacity=Bounded(50)))
        store.close()
        with Load(lab_server.url, rate=1_000, jobs=100, batch=10, mix=FAST, directory=tmp_path) as load:
            load.start()
            output = load.wait()
        assert (output.accepted, output.refused, output.ended) == (50, 50, True)
        assert answers_of(load) == {"accepted": 50, "refused": 50}


@pytest.mark.parametrize(
    ("keys", "answers"),
    [
        (True, {"unknown": 20, "duplicate": 10, "accepted": 30}),
        (False, {"unknown": 20, "accepted": 20}),
    ],
    ids=["keyed", "plain"],
)
def test_a_lost_answer_is_asked_for_again_where_there_are_keys(
    tmp_path: Path, keys: bool, answers: dict[str, int]
) -> None:
    """One call does not arrive, of another the reply is lost."""
    faults = scripted(*(("enqueue", fault) for fault in (Fault.NONE, Fault.REFUSED, Fault.NONE, Fault.REPLY_LOST)))
    store = open_store("memory://")
    with Load("memory://", jobs=40, batch=10, mix=FAST, directory=tmp_path, keys=keys, threads=1) as load:
        load.receipts.mkdir()
        order = replace(load.order, receipts=str(load.receipts / "0"), report=str(tmp_path / "report-0.json"))
        LoadProducer(order, FaultyStore(store, faults)).run(0.0)
        output = load.report()
    assert answers_of(load) == answers
    assert (output.unknown, output.open, output.duplicates) == (20, 0 if keys else 20, answers.get("duplicate", 0))
    assert store.backlog([QUEUE])[0].ready == (40 if keys else 30)


@pytest.mark.parametrize("max_behind", [10.0, 0.25], ids=["all", "some"])
def test_a_stall_is_counts_for_every_call_that_it_delays(tmp_path: Path, max_behind: float) -> None:
    """Ten calls, 50 ms apart; the first takes half a second."""
    faults = scripted(("enqueue", Fault.DELAYED))
    slow = FaultyStore(open_store("memory://"), faults, delay=lambda: Event().wait(0.5))
    shape = {"rate": 200, "jobs": 100, "batch": 10, "threads": 1, "max_behind": max_behind}
    with Load("memory://", mix=FAST, directory=tmp_path, **shape) as load:  # type: ignore[arg-type]
        load.receipts.mkdir()
        order = replace(load.order, receipts=str(load.receipts / "0"), report=str(tmp_path / "report-0.json"))
        LoadProducer(order, slow).run(time.time())
        output = load.report()
    assert (output.accepted + output.missed, output.accepted, output.ended) == (100, output.sent, True)
    assert output.latency.percentile(100) >= 0.5
    if max_behind > 1:
        assert output.missed == 0
        assert output.max_late > 0.4
        assert output.latency.percentile(40) > 0.2
    else:
        assert 20 <= output.missed <= 60
        assert output.max_late <= 0.3


def test_a_load_with_a_depth_waits_for_the_consumers(tmp_path: Path) -> None:
    store = open_store("memory://")
    consumer = TallyFile.of_this_process(tmp_path / "consumers")
    shape = {"jobs": 100, "batch": 10, "threads": 1, "depth": 30, "consumers": tmp_path / "consumers"}
    load = Load("memory://", mix=FAST, directory=tmp_path, **shape)  # type: ignore[arg-type]
    producer = LoadProducer(replace(load.order, report=str(tmp_path / "report-0.json")), store)
    running = Thread(target=producer.run, args=(0.0,))
    running.start()
    try:
        eventually(lambda: producer.report.accepted == 30, "three batches")
        running.join(0.3)
        assert producer.report.accepted == 30
        consumer.count(20)
        eventually(lambda: producer.report.accepted == 50, "two more batches")
    finally:
        producer.stop()
        running.join()
    assert store.backlog([QUEUE])[0].ready == 50
    with pytest.raises(Invalid, match="give consumers"):
        Load("memory://", depth=1, directory=tmp_path)


def test_the_app_counts_claims_runs_and_how_late_they_were(tmp_path: Path) -> None:
    mix, tallies = parse_mix("email=50,timed=50"), Tallies(tmp_path / "tallies")
    timed = sum(mix.kind(7, seq) == "timed" for seq in range(60))
    with (
        LabServer("sqlite") as lab_server,
        Load(lab_server.url, jobs=60, mix=mix, queue="default", directory=tmp_path, receipts=False) as load,
        Fleet(
            *(APP, lab_server.url, tmp_path),
            processes=0,
            lease=None,
            queues=("default",),
            env={FOLDER: str(tmp_path / "tallies"), EFFECTS: ""},
        ) as fleet,
    ):
        load.start()
        assert load.wait().accepted == 60
        fleet.start()
        eventually(lambda: tallies.jobs() == 60, "every job done", details=fleet.log)
        assert fleet.stop() == 0
    assert (tallies.claimed(), tallies.histogram(LATE).total, tallies.busy()) == (60, timed, 1)
    assert not list(load.receipts.iterdir())
    assert not list(fleet.effects.iterdir())


def test_producers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from forebay_proof.load.generator import Load
load = Load("sqlite:///{tmp_path}/jobs.db", rate=100, seconds=600, directory=Path({str(tmp_path)!r}))
load.start()
print(*load.pids, flush=True)
load.wait()
"""
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    (pid,) = map(int, starter.stdout.readline().split())
    assert alive(pid)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    gone = subprocess.run(["timeout", "20", "tail", f"--pid={pid}", "-f", "/dev/null"], check=False)
    assert gone.returncode == 0
