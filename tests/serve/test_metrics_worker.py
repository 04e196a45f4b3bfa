"""A worker's metrics: what it counts is what happened, by a real worker, over real sockets."""

import asyncio
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from urllib.error import HTTPError

import pytest

from forebay.client import Forebay
from forebay.core.breaker import Breaker
from forebay.core.errors import Invalid
from forebay.core.instant import ms, seconds
from forebay.core.policy import Fixed, Routing
from forebay.core.spec import QueueSpec
from forebay.work.metrics_server import MetricsServer
from forebay.work.options import Options, parse_address
from forebay.work.worker import Worker
from forebay_proof.servers.process import free_port
from tests.serve.test_metrics_page import Series, series


@pytest.fixture
def fb(tmp_path: Path) -> Iterator[Forebay]:
    app = Forebay(f"sqlite:///{tmp_path}/jobs.db")
    app.queue(QueueSpec(name="default", routing=Routing(2, Fixed(ms(1)))))
    yield app
    app.close()


@contextmanager
def seen_through(fb: Forebay, options: Options) -> Iterator[tuple[Worker, MetricsServer]]:
    worker = Worker(fb, options)
    metrics = MetricsServer(worker, str(free_port()), 20)
    worker.start()
    metrics.start()
    try:
        yield worker, metrics
    finally:
        worker.drain(5)
        metrics.close()


def get(metrics: MetricsServer, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_what_it_counts_is_what_happened(fb: Forebay) -> None:
    going, let_go = Event(), Event()

    @fb.job
    async def quick(n: int) -> None:
        await asyncio.sleep(0)

    @fb.job(breaker=Breaker(failures=1, cooldown=seconds(60)))
    def broken() -> None:
        raise OSError("down")

    @fb.job
    def long() -> None:
        going.set()
        let_go.wait(30)

    for n in range(20):
        quick.enqueue(n)
    for _ in range(2):
        broken.enqueue()
    last = long.enqueue()
    with seen_through(fb, Options(concurrency=8, lease_for=ms(300))) as (_, metrics):
        going.wait(30)

        def settled() -> bool:
            found = series(get(metrics))
            renewed = found["forebay_worker_renewals_total", ()] > 0
            rejected = found["forebay_breaker_rejected_total", (("kind", "broken"),)] > 0
            return renewed and rejected and found["forebay_worker_settles_total", (("answer", "applied"),)] >= 22

        while not settled():
            pass
        found = series(get(metrics))
        check(found)
        let_go.set()
        fb.wait_for(last.id)
        while series(get(metrics))["forebay_worker_verdicts_pending", ()]:
            pass
        assert get(metrics, "/health") == "alive\n"


def check(found: Series) -> None:
    assert found["forebay_worker_healthy", ()] == 1
    assert found["forebay_worker_slots", ()] == 8
    assert found["forebay_worker_running", ()] == 1
    assert found["forebay_worker_free", ()] >= 7
    assert found["forebay_worker_claimed_total", ()] >= 23
    assert found["forebay_worker_claim_duration_seconds_count", ()] == found["forebay_worker_claims_total", ()] > 0
    assert found["forebay_worker_settles_total", (("answer", "stale"),)] == 0
    assert found["forebay_worker_errors_total", (("role", "claimer"),)] == 0
    assert 0 <= found["forebay_worker_loop_lag_seconds", ()] < 1
    assert found["forebay_breaker_state", (("kind", "broken"), ("state", "open"))] == 1
    assert found["forebay_breaker_state", (("kind", "broken"), ("state", "closed"))] == 0
    assert found["forebay_breaker_rejected_total", (("kind", "broken"),)] >= 1


def test_a_loop_that_is_held_shows(fb: Forebay) -> None:
    going, let_go = Event(), Event()

    @fb.job
    async def rude() -> None:
        going.set()
        let_go.wait(30)

    rude.enqueue()
    with seen_through(fb, Options(concurrency=2)) as (_, metrics):
        going.wait(30)
        assert series(get(metrics))["forebay_worker_loop_lag_seconds", ()] == 1
        let_go.set()


def test_other_paths_and_slow_readers(fb: Forebay) -> None:
    with seen_through(fb, Options()) as (_, metrics):
        with pytest.raises(HTTPError, match="404"):
            get(metrics, "/etc/passwd")
        slow = [socket.create_connection(("127.0.0.1", metrics.port)) for _ in range(4)]
        refused = socket.create_connection(("127.0.0.1", metrics.port))
        refused.settimeout(10)
        assert refused.recv(1) == b"", "a request is refused while all threads are busy"
        for each in (*slow, refused):
            each.close()
        while True:
            try:
                assert "forebay_worker_healthy 1" in get(metrics)
                break
            except OSError:
                continue


def test_the_second_process_takes_the_next_port(fb: Forebay) -> None:
    worker = Worker(fb, Options())
    first = MetricsServer(worker, str(free_port()), 20)
    second = MetricsServer(worker, str(first.port), 20)
    assert first.port < second.port <= first.port + 19
    with pytest.raises(Invalid, match="cannot listen on"):
        MetricsServer(worker, str(first.port))
    for metrics in (first, second):
        metrics._server.server_close()


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:9", ("::1", 9)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_where_to_listen(place: str, meant: tuple[str, int]) -> None:
    assert parse_address(place) == meant
    assert Options(metrics=place).metrics == place


@pytest.mark.parametrize("place", ["", "host", "host:", "0", "65536", "1:2:x", "-1", "٣"])
def test_where_no_store_can_listen(place: str) -> None:
    with pytest.raises(Invalid, match="metrics"):
        Options(metrics=place)
