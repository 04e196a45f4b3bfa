"""Large payloads by claim check: written before the job, verified before the handler, swept when no job needs them.

On files, on fsspec's memory, and on a real S3 API on loopback (moto), through pyarrow's file system.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Event, current_thread
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from forebay.blobs import Blobs, BlobSweeper
from forebay.cli import main
from forebay.client import Forebay
from forebay.core.errors import BlobFailed, ForebayError, Invalid, KeyConflict, PayloadInvalid
from forebay.core.instant import hours, ms
from forebay.core.job import Draft, Job, State
from forebay.core.outcome import Dropped, Failed, Outcome
from forebay.core.payload import reference_of
from forebay.core.policy import Fixed, KeepFor, Routing
from forebay.core.spec import QueueSpec
from forebay.enqueue_options import Settings
from forebay.store.open import open_store
from forebay.store.protocol import Query
from forebay.testing.job_tester import JobTester
from forebay.vault import Vault, envelope_of
from forebay.work.handler import Handler
from forebay.work.worker import Worker
from forebay_proof.servers.process import free_port
from tests.waiting import eventually

LARGE = "x" * 300_000
NOW = timedelta(0)
"""A sweep without a grace time; names are exact to the second, so the clocks of these tests run ahead."""


def app_with(blobs: Blobs | str | None, vault: Vault | None = None) -> Forebay:
    app = Forebay("memory://", vault=vault, blobs=blobs)
    app.queue(QueueSpec(name="default", routing=Routing(2, Fixed(ms(1)))))

    @app.job(keep_result=True, result_ttl=60)
    def measure(text: str) -> int:
        return len(text)

    @app.job
    async def measure_async(text: str) -> None:
        if not text:
            raise ValueError("empty")

    return app


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """pyarrow's S3 file system as fsspec's, on a server of its own: s3fs is not among the pinned packages."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import S3FileSystem

    address = f"127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address.partition(":")[2]]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            eventually(lambda: makes_bucket(f"http://{address}/payloads"), "the S3 server runs")
            system = S3FileSystem(
                access_key="test", secret_key="test", endpoint_override=address, scheme="http", region="us-east-1"
            )
            yield ArrowFSWrapper(system)
        finally:
            server.terminate()


def makes_bucket(url: str) -> bool:
    try:
        urlopen(Request(url, method="PUT"), timeout=60).close()
    except URLError:
        return False
    return True


@pytest.fixture(params=["file", "memory", "s3"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Blobs]:
    def opened(**options: Any) -> Blobs:
        if request.param == "file":
            return Blobs(f"file://{tmp_path}/blobs", **options)
        if request.param == "memory":
            return Blobs(f"memory://{tmp_path.name}", **options)
        system = request.getfixturevalue("s3")
        return Blobs(f"payloads/{tmp_path.name}", filesystem=system, **options)

    return opened


def store_of(app: Forebay) -> Blobs:
    assert app.codec.blobs is not None
    return app.codec.blobs


def names(blobs: Blobs) -> list[str]:
    return list(blobs._names(2**62))


def only(app: Forebay) -> Job:
    (job,) = app.jobs()
    return job


def test_a_large_payload_is_in_the_blob_store_and_a_small_one_in_its_job(make: Callable[..., Blobs]) -> None:
    app = app_with(make())
    with JobTester(app) as jobs:
        small, large = app.enqueue("measure", {"text": "x"}), app.enqueue("measure", {"text": LARGE})
        inline, reference = app.get(small.id), app.get(large.id)
        assert inline is not None
        assert reference is not None
        assert inline.payload == {"text": "x"}
        assert len(reference.body) < 300
        assert app.payload(reference) == {"text": LARGE}
        assert len(names(store_of(app))) == 1
        jobs.run_all()
        assert app.result(large.id, 0) == 300_000
        jobs.assert_enqueued("measure", 1, text=LARGE)


def test_a_typed_call_and_a_stream_of_drafts_go_the_same_way(make: Callable[..., Blobs]) -> None:
    app = app_with(make(threshold=100))
    measure = app.registry["measure"].signature
    with JobTester(app) as jobs:
        app.enqueue_many([Draft("measure", {"text": "x" * 101}), Draft("measure", {"text": "x"})])
        assert [is_large(job) for job in app.jobs()] == [True, False]
        assert measure.pack((LARGE * 2,), {}) == {"text": LARGE * 2}
        jobs.run_all()
        assert jobs.errors == []


def is_large(job: Job) -> bool:
    return reference_of(job.body) is not None


def test_workers_read_blobs_in_threads_and_for_async_handlers_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Forebay(f"sqlite:///{tmp_path}/jobs.db", blobs=f"file://{tmp_path}/blobs")
    on_loop: list[bool] = []
    done = Event()

    @app.job
    async def count(text: str) -> None:
        on_loop.append(len(text) == 300_000)
        done.set()

    assert app.codec.blobs is not None
    get = app.codec.blobs.get

    def watched(*args: Any) -> bytes:
        try:
            asyncio.get_running_loop()
            on_loop.append(False)
        except RuntimeError:
            on_loop.append(True)
        return get(*args)

    monkeypatch.setattr(app.codec.blobs, "get", watched)
    count.enqueue(LARGE)
    worker = Worker(app)
    worker.start()
    assert done.wait(60)
    worker.drain(10)
    assert on_loop == [True, True]
    assert list(app.jobs()) == []
    assert app.codec.blobs.swept_at() is not None, "a worker sweeps"
    app.close()


def test_coroutines_enqueue_large_payloads_too(tmp_path: Path) -> None:
    app = app_with(f"file://{tmp_path}")
    with JobTester(app):
        asyncio.run(app.aenqueue("measure", {"text": LARGE}))
        assert is_large(only(app))


def test_a_missing_blob_is_retried_and_then_a_dead_letter(make: Callable[..., Blobs]) -> None:
    blobs = make()
    app = app_with(blobs)
    with JobTester(app) as jobs:
        app.enqueue("measure", {"text": LARGE})
        blobs._remove(names(blobs)[0])
        jobs.run_all()
        assert only(app).state is State.WAITING
        jobs.advance(seconds=1)
        job = only(app)
        assert (job.state, job.attempt) == (State.DEAD, 2)
        assert "does not exist" in job.errors[-1].message
        assert "redrive" in job.errors[-1].message


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body + b" ", lambda body: body[:-1] + b"!"])
def test_a_damaged_blob_is_a_dead_letter_at_once(make: Callable[..., Blobs], change: Callable[[bytes], bytes]) -> None:
    blobs = make()
    app = app_with(blobs)
    with JobTester(app) as jobs:
        app.enqueue("measure", {"text": LARGE})
        (name,) = names(blobs)
        blobs._write(name, change(blobs._fs.cat_file(blobs._path(name))))
        jobs.run_all()
        job = only(app)
        assert (job.state, job.attempt) == (State.DEAD, 1)
        assert "not those that were written" in job.errors[-1].message


def test_rules_for_retries_do_not_make_a_missing_blob_fatal(tmp_path: Path) -> None:
    app = app_with(f"file://{tmp_path}")

    @app.job(retry_on=OSError)
    def strict(text: str) -> None: ...

    with JobTester(app) as jobs:
        strict.enqueue(LARGE)
        (name,) = names(store_of(app))
        os.unlink(tmp_path / name)
        jobs.run_all()
        assert only(app).state is State.WAITING


def run(app: Forebay, body: bytes) -> Outcome:
    """The outcome of a job with this payload, up to its handler."""
    handler = app.registry["measure"]
    with pytest.raises(ForebayError) as failed:
        handler.signature.unpack(body)
    return handler.outcome_of(failed.value, body)


def test_a_worker_without_a_blob_store_says_so_and_tries_again(tmp_path: Path) -> None:
    draft = app_with(f"file://{tmp_path}").make_draft("measure", {"text": LARGE}, Settings())
    outcome = run(app_with(None), draft.body)
    assert isinstance(outcome, Failed)
    assert "no blob store" in outcome.error.message


def test_a_reference_reads_nothing_outside_of_the_blob_store(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"{}")
    app = app_with(f"file://{tmp_path}/blobs")
    digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    for name in ("../secret", f"{tmp_path}/secret", "2026-01-01/../../secret"):
        outcome = run(app, Draft("measure", {"$blob": {"name": name, "size": 2, "sha256": digest}}).body)
        assert isinstance(outcome, Dropped)
        assert "not the name of a blob" in outcome.error.message


def test_sizes_are_bounded(tmp_path: Path) -> None:
    app = app_with(Blobs(f"file://{tmp_path}", max_bytes=300_000))
    with pytest.raises(PayloadInvalid, match="the limit is 300000"):
        app.enqueue("measure", {"text": LARGE})
    with pytest.raises(PayloadInvalid, match="blob store"):
        app_with(None).enqueue("measure", {"text": LARGE})
    with pytest.raises(Invalid, match="threshold"):
        Blobs(f"file://{tmp_path}", threshold=300_000)
    with pytest.raises(Invalid, match="nosuch"):
        Blobs("nosuch://there")
    huge = {"$blob": {"name": "2026-01-01/000000-" + "0" * 32, "size": 700_000, "sha256": "0" * 64}}
    outcome = run(app, Draft("measure", huge).body)
    assert isinstance(outcome, Dropped)
    assert "more than max_bytes" in outcome.error.message


def test_a_failed_write_enqueues_nothing(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file where the directory should be")
    app = app_with(f"file://{tmp_path}/blobs")
    with JobTester(app), pytest.raises(BlobFailed, match="nothing was enqueued") as failed:
        app.enqueue("measure", {"text": LARGE})
    assert str(tmp_path) not in str(failed.value)


def test_the_key_of_a_large_payload_recognises_it_with_and_without_blobs(tmp_path: Path) -> None:
    vault = Vault({"a": b"k" * 32})
    for sealing in (None, vault):
        app = app_with(Blobs(f"file://{tmp_path}", threshold=1_000), sealing)
        inline = app_with(None, sealing)
        app.queue(QueueSpec(name="default", retention=KeepFor(hours(1))))
        with JobTester(app):
            first = app.enqueue("measure", {"text": "x" * 2_000, "unit": "m"}, key="k")
            again = app.enqueue("measure", {"unit": "m", "text": "x" * 2_000}, key="k")
            draft = inline.make_draft("measure", {"text": "x" * 2_000, "unit": "m"}, Settings(key="k"))
            assert app.store.enqueue([draft])[0].id == first.id == again.id
            with pytest.raises(KeyConflict):
                app.enqueue("measure", {"text": "y" * 2_000, "unit": "m"}, key="k")


def test_a_vault_seals_what_the_blob_store_keeps(make: Callable[..., Blobs]) -> None:
    blobs = make()
    app = app_with(blobs, Vault({"a": b"k" * 32}))
    with JobTester(app) as jobs:
        receipt = app.enqueue("measure", {"text": LARGE})
        (name,) = names(blobs)
        assert b"$sealed" in blobs._fs.cat_file(blobs._path(name))
        assert b"x" * 64 not in blobs._fs.cat_file(blobs._path(name))
        jobs.run_all()
        assert app.result(receipt.id, 0) == 300_000


def test_a_sweep_removes_what_no_job_refers_to(make: Callable[..., Blobs]) -> None:
    blobs = make()
    app = app_with(blobs)
    with JobTester(app) as jobs:
        app.enqueue("measure", {"text": LARGE})
        orphan = blobs.put(Draft("measure"), b'"orphan"')
        assert blobs.sweep(app.store, timedelta(days=3_660)).examined == 0, "younger ones are left alone"
        jobs.clock.advance(4_000_000_000_000_000)
        assert blobs.sweep(app.store, NOW, dry_run=True).removed == 1
        assert len(names(blobs)) == 2
        swept = blobs.sweep(app.store, NOW)
        assert (swept.examined, swept.removed) == (2, 1)
        assert names(blobs) == [reference_name(only(app))]
        assert reference_name(orphan) not in names(blobs)
        jobs.run_all()
        assert list(app.jobs(Query(state=State.DONE))), "kept with its result: so is its blob"
        assert blobs.sweep(app.store, NOW).removed == 0
        jobs.advance(minutes=2)
        jobs.run_all()
        assert blobs.sweep(app.store, NOW).removed == 1
        assert names(blobs) == []


def reference_name(job: Job | Draft) -> str:
    reference = reference_of(job.body)
    assert reference is not None
    return reference.name


def exporting(blobs: Blobs | None, vault: Vault | None = None) -> Forebay:
    app = app_with(blobs, vault)

    @app.job(keep_result=True, result_ttl=60)
    def export(size: int) -> str:
        return "r" * size

    @app.job(keep_result=True, result_ttl=60, retry_on=OSError)
    async def export_async(size: int) -> str:
        return "r" * size

    return app


def test_a_large_result_is_in_the_blob_store_until_its_job_is_gone(make: Callable[..., Blobs]) -> None:
    blobs = make()
    app = exporting(blobs)
    with JobTester(app) as jobs:
        small, large = app.enqueue("export", {"size": 1}), app.enqueue("export", {"size": 300_000})
        jobs.run_all()
        assert len(names(blobs)) == 1
        job = app.get(large.id)
        assert job is not None
        assert len(job.result_body or b"") < 300
        assert app.result(large.id, 0) == "r" * 300_000
        assert (app.result(small.id, 0), asyncio.run(app.aresult(large.id, 0))) == ("r", "r" * 300_000)


def test_a_sweep_keeps_the_results_of_kept_jobs(tmp_path: Path) -> None:
    blobs = Blobs(f"file://{tmp_path}")
    app = exporting(blobs)
    with JobTester(app) as jobs:
        jobs.clock.advance(4_000_000_000_000_000)
        app.enqueue("export", {"size": 300_000})
        jobs.run_all()
        swept = blobs.sweep(app.store, NOW)
        assert (swept.examined, swept.removed) == (1, 0)
        jobs.advance(minutes=2)
        jobs.run_all()
        assert blobs.sweep(app.store, NOW).removed == 1


def test_a_vault_seals_a_large_result(tmp_path: Path) -> None:
    blobs = Blobs(f"file://{tmp_path}")
    app = exporting(blobs, Vault({"a": b"k" * 32}))
    with JobTester(app) as jobs:
        receipt = app.enqueue("export", {"size": 300_000})
        jobs.run_all()
        (name,) = names(blobs)
        assert (tmp_path / name).read_bytes().startswith(b'{"$sealed"')
        assert app.result(receipt.id, 0) == "r" * 300_000


def test_a_result_that_cannot_be_written_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file where the directory should be")
    app = exporting(Blobs(f"file://{tmp_path}/blobs"))
    with JobTester(app) as jobs:
        receipt = app.enqueue("export_async", {"size": 300_000})
        jobs.run_all()
        assert only(app).state is State.WAITING, "retried, also beside retry_on"
        (tmp_path / "blobs").unlink()
        jobs.advance(seconds=1)
        assert app.result(receipt.id, 0) == "r" * 300_000


def test_a_result_beyond_the_bound_is_a_dead_letter(tmp_path: Path) -> None:
    for blobs, bound in ((None, "the limit is 262144"), (Blobs(f"file://{tmp_path}", max_bytes=299_000), "299000")):
        app = exporting(blobs)
        with JobTester(app) as jobs:
            app.enqueue("export", {"size": 300_000})
            jobs.run_all()
            assert (only(app).state, only(app).attempt) == (State.DEAD, 1)
            assert bound in only(app).errors[-1].message
            assert "blobs=" in only(app).errors[-1].message


def test_a_worker_writes_the_results_of_async_handlers_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = exporting(Blobs(f"file://{tmp_path}"))
    writers: list[str] = []
    write = Blobs._write

    def watched(self: Blobs, name: str, body: bytes) -> None:
        writers.append(current_thread().name)
        write(self, name, body)

    monkeypatch.setattr(Blobs, "_write", watched)
    worker = Worker(app)
    worker.start()
    try:
        receipt = app.enqueue("export_async", {"size": 300_000})
        assert receipt.result(20) == "r" * 300_000
    finally:
        worker.drain(5)
    assert any(name.startswith("asyncio_") for name in writers), writers


def test_the_sweeper_of_a_worker_sweeps_once_an_hour(tmp_path: Path) -> None:
    blobs = Blobs(f"file://{tmp_path}")
    app = app_with(blobs)
    with JobTester(app) as jobs:
        jobs.clock.advance(4_000_000_000_000_000)
        sweeper = BlobSweeper(app.store, blobs)
        blobs.put(Draft("measure"), b"1")
        while sweeper.step() < 1:
            pass
        assert names(blobs) == []
        blobs.put(Draft("measure"), b"1")
        assert BlobSweeper(app.store, blobs).step() > 1
        assert len(names(blobs)) == 1
        jobs.clock.advance(3_600_000_000)
        while sweeper.step() < 1:
            pass
        assert names(blobs) == []


def test_messages_about_a_job_are_free_of_the_secrets_in_its_blob(tmp_path: Path) -> None:
    app = app_with(f"file://{tmp_path}")

    @app.job
    def charge(password: str, filler: str) -> None:
        raise ValueError(f"wrong: {password}")

    with JobTester(app) as jobs:
        charge.enqueue("hunter2-hunter2", LARGE)
        jobs.run_all()
        assert "hunter2" not in only(app).errors[-1].message
        handler: Handler = app.registry["charge"]
        os.unlink(tmp_path / names(store_of(app))[0])
        assert "hunter2-hunter2" in handler.secrets(only(app).body), "known without another read"


def test_a_job_from_the_command_line_is_sealed_and_stored_as_its_app_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sealed_app.py").write_text(
        "from forebay import Forebay\n"
        "from forebay.vault import Vault\n"
        "keys = Vault({'a': b'k' * 32})\n"
        f"fb = Forebay('sqlite:///{tmp_path}/jobs.db', blobs='file://{tmp_path}/blobs', vault=keys)\n"
        "@fb.job\n"
        "def measure(text: str) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for text in ("small", "x" * 100_000):
        assert main(["enqueue", "measure", f"text={text}", "--app", "sealed_app:fb", "--json"]) == 0
    with closing(open_store(f"sqlite:///{tmp_path}/jobs.db")) as store:
        small, large = store.browse(Query(), 0, 10).jobs
    assert envelope_of(small.body) is not None
    assert is_large(large)
    (name,) = names(Blobs(f"file://{tmp_path}/blobs"))
    assert b"$sealed" in (tmp_path / "blobs" / name).read_bytes()


def test_the_command_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "blob_app.py").write_text(
        "from forebay import Forebay\n"
        f"fb = Forebay('sqlite:///{tmp_path}/jobs.db', blobs='file://{tmp_path}/blobs')\n"
        "bare = Forebay('memory://')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    blobs = Blobs(f"file://{tmp_path}/blobs")
    blobs._write("2020-01-01/000000-" + "0" * 32, b"1")
    assert main(["blobs", "sweep", "blob_app:fb", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would remove 1 of 1 old blob\n"
    assert main(["blobs", "sweep", "blob_app:fb", "--json"]) == 0
    assert capsys.readouterr().out.split() == ['{"examined":1,"removed":1,"dry_run":false}']
    assert names(blobs) == []
    assert main(["blobs", "sweep", "blob_app:bare"]) == 2
    assert "no blob store" in capsys.readouterr().err
