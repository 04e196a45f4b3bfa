"""A server whose TCP still acknowledges and that never answers: a hung pooler, a stalled primary.

Every call ends in time, is made again where that is safe, and does its work once; a worker says that it is not well.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from forebay import Draft, QueueSpec, Store, Want, open_store
from forebay.core.errors import Invalid, StoreFailed
from forebay.core.instant import seconds
from forebay.core.outcome import Ack
from forebay.core.schedule import Schedule
from forebay.store import connection_pool
from forebay.store.protocol import Query
from forebay_proof.conformance.racing import RacingCall
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.process import free_port
from forebay_proof.servers.proxy import Proxy
from forebay_proof.servers.redis import RedisServer
from tests.process.load import Load
from tests.process.site import APP
from tests.waiting import PATIENCE, eventually

CALL = 0.5
SILENT = "no answer within"
FAR = 2**52


class Peer:
    """A store behind a proxy that can fall silent, and the way around it."""

    def __init__(self, server: PostgresServer | RedisServer, url: str) -> None:
        self.proxy = Proxy(server.host, server.port)
        self.direct = url
        self.url = patient(self.proxy.url(url), CALL)


def patient(url: str, limit: float) -> str:
    return f"{url}{'&' if '?' in url else '?'}call_timeout={limit:g}"


@pytest.fixture(params=("postgres", "redis"))
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    server = request.getfixturevalue(request.param)
    peer = Peer(server, request.getfixturevalue(f"{request.param}_url"))
    with peer.proxy:
        yield peer


def until_printed(caplog: pytest.LogCaptureFixture, text: str) -> None:
    eventually(lambda: text in caplog.text, f"the log has {text!r}", details=lambda: caplog.text)


def test_a_call_that_is_not_answered_is_made_again_and_happens_once(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sent first arrives late, after its connection was given up."""
    with closing(open_store(peer.url)) as store, closing(open_store(peer.direct)) as direct:
        store.enqueue([Draft("k")])
        with caplog.at_level(logging.WARNING, "forebay.store"):
            peer.proxy.freeze()
            late = RacingCall(lambda: store.enqueue([Draft("k")] * 3))
            until_printed(caplog, SILENT)
        assert not late.ends_within(0), "it goes on trying"
        peer.proxy.thaw()
        receipts = late.result(PATIENCE)
        time.sleep(CALL)
        jobs = direct.browse(Query(), 0, 100).jobs
        assert [job.id for job in jobs][-3:] == [receipt.id for receipt in receipts]
        assert len(jobs) == 4


def verbs(store: Store) -> dict[str, Callable[[], object]]:
    (lease,) = store.claim([Want("default", 1)], "ada", seconds(600))
    return {
        "enqueue": lambda: store.enqueue([Draft("k")]),
        "keyed": lambda: store.enqueue([Draft("k", key="a")]),
        "claim": lambda: store.claim([Want("default", 1)], "ada", seconds(60)),
        "settle": lambda: store.settle([(lease, Ack())]),
        "extend": lambda: store.extend([lease], seconds(60)),
        "overdue": lambda: store.overdue(10),
        "promote": lambda: store.promote(10),
        "backlog": store.backlog,
        "get": lambda: store.get([lease.job.id]),
        "browse": lambda: store.browse(Query(), 0, 10),
        "cancel": lambda: store.cancel([lease.job.id]),
        "put_spec": lambda: store.put_spec(QueueSpec(name="other")),
        "put_schedule": lambda: store.put_schedule(Schedule("s", "* * * * *", FAR, Draft("k"))),
        "wait": lambda: store.wait(["nothing"], seconds(30)),
        "now": store.now,
    }


def test_every_call_ends_while_the_server_is_silent(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "CERTAIN_SECONDS", 0.2)
    with closing(open_store(peer.url)) as store:
        store.enqueue([Draft("k")])
        calls = verbs(store)
        peer.proxy.freeze()
        for part in (list(calls)[:8], list(calls)[8:]):
            tasks = {name: RacingCall(calls[name]) for name in part}
            for name, task in tasks.items():
                with pytest.raises(StoreFailed):
                    raise AssertionError(f"{name} was answered: {task.result(PATIENCE)}")
        opening = RacingCall(lambda: open_store(peer.url))
        with pytest.raises(StoreFailed):
            opening.result(PATIENCE)
        peer.proxy.thaw()
        assert store.enqueue([Draft("k")])[0].id > 0, "it goes on by itself"


def test_a_time_for_calls_that_makes_no_sense_is_refused(peer: Peer) -> None:
    for value in ("0", "soon", "1e9", ""):
        with pytest.raises(Invalid, match=r"call_timeout: .*write \?call_timeout=10"):
            open_store(patient(peer.proxy.url(peer.direct), 1).replace("call_timeout=1", f"call_timeout={value}"))


def health(port: int) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
    except URLError:
        return 0, ""


def test_a_worker_that_claims_nothing_for_fifteen_seconds_is_not_healthy(
    durable: PostgresServer, durable_url: str, tmp_path: Path
) -> None:
    """Alone and under a supervisor, while its calls hang; and it is well again when they are answered."""
    site = Load(tmp_path, durable_url)
    with Proxy(durable.host, durable.port) as proxy:
        ports = [free_port(), free_port()]
        workers = [
            site.run(
                "-m", "forebay", "worker", f"{APP}:fb", "--metrics", f"127.0.0.1:{port}", *more, url=proxy.url(site.url)
            )
            for port, more in zip(ports, ((), ("--processes", "1")), strict=True)
        ]
        try:
            site.until(lambda: [health(port)[0] for port in ports] == [200, 200], "both are well")
            proxy.freeze()
            frozen_at = time.monotonic()
            site.until(lambda: [health(port)[0] for port in ports] == [503, 503], "both are not", 40)
            assert time.monotonic() - frozen_at > 10
            assert all(health(port)[1].startswith("no claim round for") for port in ports)
            assert SILENT in site.log.read_text()
            proxy.thaw()
            site.until(lambda: [health(port)[0] for port in ports] == [200, 200], "both are well again", 40)
            assert [site.end(worker) for worker in workers] == [0, 0]
        finally:
            site.close()
