"""Webhooks: signed as Standard Webhooks says, delivered to a real HTTP server, and never to a private address."""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from forebay import Context, Draft, Drop, Forebay, Invalid, QueueSpec, RetryAfter, State, Want
from forebay.core.instant import ms
from forebay.core.outcome import Failed
from forebay.core.policy import Fixed, Routing
from forebay.testing.job_tester import JobTester
from forebay.webhooks import WebhookInvalid, new_secret, sign, verify
from forebay.work.isolate import _run_job
from forebay.work.lifespan import Lifespan
from forebay.work.webhook import MAX_RETRY_AFTER, DeliveryFailed, Endpoint, seconds_of
from tests.serve.test_security_tls import Authority

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HERE = ("127.0.0.1",)


class Receiver:
    """A server on loopback that verifies what it gets, and answers as the test says."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.received: list[tuple[str, Any]] = []
        self.paths: list[str] = []
        self.silent = Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                event = verify(body, dict(self.headers), [new_secret(), SECRET])
                receiver.received.append((self.headers["webhook-id"], event))
                receiver.paths.append(self.path)
                status, headers = receiver.answers.pop(0) if receiver.answers else (204, {})
                if status == 0:
                    receiver.drip(self)
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def drip(self, handler: BaseHTTPRequestHandler) -> None:
        """A byte of a header now and then, for three seconds: every read succeeds in time."""
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
        for _ in range(60):
            if self.silent.wait(0.05):
                return
            try:
                handler.wfile.write(b"x")
                handler.wfile.flush()
            except OSError:
                return

    def close(self) -> None:
        self.silent.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


def app_for(receiver: Receiver, **options: Any) -> Forebay:
    app = Forebay("memory://")
    app.queue(QueueSpec(name="default", routing=Routing(3, Fixed(ms(1_000)))))
    url = f"http://127.0.0.1:{receiver.port}/hooks?token=tok-4711"
    app.webhook("order_paid", url=url, secret=SECRET, **{"allow": HERE, **options})
    return app


def only_state(app: Forebay) -> State | None:
    return next((job.state for job in app.jobs()), None)


def test_a_job_is_one_signed_post(receiver: Receiver) -> None:
    app = app_for(receiver, headers={"X-From": "forebay"})
    with JobTester(app) as jobs:
        receipt = app.enqueue("order_paid", {"order": 7})
        jobs.run_all()
        ((message_id, event),) = receiver.received
        assert event["type"] == "order_paid"
        assert event["data"] == {"order": 7}
        assert event["timestamp"]
        assert message_id.startswith(f"order_paid-{receipt.id}-")
        assert receiver.paths == ["/hooks?token=tok-4711"]
        assert only_state(app) is None, "acknowledged"


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 425, 429])
def test_a_server_in_trouble_is_asked_again_with_the_same_id(receiver: Receiver, status: int) -> None:
    app = app_for(receiver)
    receiver.answers = [(status, {})]
    with JobTester(app) as jobs:
        app.enqueue("order_paid", {})
        jobs.run_all()
        assert only_state(app) is State.WAITING
        jobs.advance(seconds=1)
        assert only_state(app) is None
        first, second = receiver.received
        assert first[0] == second[0]


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 403, 404, 410, 422])
def test_a_refusal_is_a_dead_letter_at_once(receiver: Receiver, status: int) -> None:
    app = app_for(receiver)
    other = Receiver()
    receiver.answers = [(status, {"Location": f"http://127.0.0.1:{other.port}/inside", "Retry-After": "60"})]
    with JobTester(app) as jobs:
        app.enqueue("order_paid", {})
        jobs.run_all()
        (job,) = app.jobs()
        assert (job.state, job.attempt) == (State.DEAD, 1)
        assert f"status {status}" in job.errors[-1].message
        assert other.received == [], "no redirect is followed"
    other.close()


def test_retry_after_is_honoured(receiver: Receiver) -> None:
    app = app_for(receiver)
    receiver.answers = [(503, {"Retry-After": "120"})]
    with JobTester(app) as jobs:
        app.enqueue("order_paid", {})
        jobs.run_all()
        jobs.advance(seconds=119)
        assert len(receiver.received) == 1
        jobs.advance(seconds=1)
        assert len(receiver.received) == 2


def test_retry_after_is_a_number_or_a_date_and_bounded() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100))
    assert 90 < (seconds_of(soon) or 0) <= 100
    assert seconds_of("Thu, 01 Jan 1970 00:00:00 GMT") == 0
    assert seconds_of("30") == 30
    assert seconds_of("9999999999") == MAX_RETRY_AFTER
    assert [seconds_of(text) for text in (None, "", "soon", "-1", "1e9", "9" * 40)] == [None] * 6


def test_an_answer_that_is_never_whole_is_cut_at_the_timeout(receiver: Receiver) -> None:
    receiver.answers = [(0, {})]
    endpoint = Endpoint(f"http://127.0.0.1:{receiver.port}", SECRET, allow=HERE, timeout=0.5)
    with pytest.raises(DeliveryFailed, match=r"no answer within 0\.5 s"):
        endpoint.deliver("m", b"{}")


def test_a_closed_port_is_worth_another_attempt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(DeliveryFailed, match="ConnectionRefusedError"):
        Endpoint(f"http://127.0.0.1:{port}", SECRET, allow=HERE).deliver("m", b"{}")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("::1", "fe80::1", "fd00::1", "::ffff:10.0.0.1", "2002:0a00:0001::", "64:ff9b::7f00:1", "224.0.0.1"),
    ],
)
def test_private_addresses_are_refused_whatever_the_name(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 443))])
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it connected"))
    with pytest.raises(Drop, match="no public address"):
        Endpoint("https://hooks.example.com", SECRET).deliver("m", b"{}")


def test_the_address_that_was_checked_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to another address the second time gains nothing by it."""
    answers = iter(["93.184.216.34", "10.0.0.1"])
    asked: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (next(answers), 443))])

    def connect(address: Any, *_: object) -> socket.socket:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(DeliveryFailed):
        Endpoint("https://hooks.example.com", SECRET).deliver("m", b"{}")
    assert asked == [("93.184.216.34", 443)]


def test_plain_http_is_for_allowed_hosts_alone(receiver: Receiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}"
    with pytest.raises(Drop, match="not https"):
        Endpoint(url, SECRET).deliver("m", b"{}")
    assert Endpoint(url, SECRET, allow=["127.0.0.0/8"]).deliver("m", b"{}") == 204
    assert Endpoint(url.replace("127.0.0.1", "localhost"), SECRET, allow=["LOCALHOST"]).deliver("m", b"{}") == 204
    assert len(receiver.received) == 2


def test_tls_is_for_the_name_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path, "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("receiver"))
    server = Receiver(context)
    try:
        url = f"https://127.0.0.1:{server.port}"
        assert Endpoint(url, SECRET, allow=HERE).deliver("m", b"{}") == 204
        with pytest.raises(DeliveryFailed, match="SSLCertVerificationError"):
            Endpoint(url.replace("127.0.0.1", "localhost"), SECRET, allow=["localhost"]).deliver("m", b"{}")
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(DeliveryFailed, match="SSLCertVerificationError"):
            Endpoint(url, SECRET, allow=HERE).deliver("m", b"{}")
    finally:
        server.close()


@pytest.mark.parametrize(
    ("url", "options", "complaint"),
    [
        ("ftp://a/b", {}, "not an address of a server"),
        ("https:///b", {}, "not an address of a server"),
        ("https://u:hunter2@a/b", {}, "password"),
        ("https://a", {"secret": "whsec_short"}, "malformed"),
        ("https://a", {"secret": [SECRET] * 5}, "5 were given"),
        ("https://a", {"headers": {"Webhook-Id": "1"}}, "reserved"),
        ("https://a", {"headers": {"X": "a\r\nb"}}, "printable"),
        ("https://a", {"allow": ["10.0.0.1/8"]}, "neither a host nor a network"),
        ("https://a", {"allow": "10.0.0.0/8"}, "one string"),
        ("https://a", {"timeout": 0}, "timeout"),
    ],
)
def test_mistakes_are_refused_at_the_start(url: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint) as refused:
        Forebay("memory://").webhook("k", **{"url": url, "secret": SECRET, **options})
    assert "hunter2" not in str(refused.value)
    assert SECRET not in str(refused.value)


def test_no_text_about_a_delivery_holds_a_secret(receiver: Receiver) -> None:
    app = app_for(receiver, headers={"Authorization": "Bearer hunter2"})
    receiver.answers = [(500, {}), (400, {})]
    with JobTester(app) as jobs:
        app.enqueue("order_paid", {})
        jobs.run_all()
        jobs.advance(seconds=1)
        (job,) = app.jobs()
        for secret in ("tok-4711", "hunter2", SECRET[6:]):
            assert secret not in repr(job)
            assert secret not in repr([repr(error) for error in jobs.errors])
    assert "tok-4711" not in repr(Endpoint("https://a/?tok-4711", SECRET))


def test_the_signature_is_that_of_the_standard() -> None:
    """The example of the specification's libraries."""
    body = b'{"test": 2432232314}'
    headers = sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body, SECRET)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert verify(body, headers, SECRET, now=1614265330) == {"test": 2432232314}


def test_the_library_of_the_standard_and_ours_verify_each_other() -> None:
    from standardwebhooks import Webhook, WebhookVerificationError

    body, secrets, now = (
        b'{"event": "order_paid", "data": {"order": 42}}',
        [new_secret(), new_secret()],
        int(time.time()),
    )
    headers = sign("job-1", now, body, secrets)
    for secret in secrets:
        assert Webhook(secret).verify(body, headers) == {"event": "order_paid", "data": {"order": 42}}
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secrets[0]).verify(body + b" ", headers)

    theirs = Webhook(secrets[0]).sign("msg-1", datetime.fromtimestamp(now, UTC), body.decode())
    received = {"webhook-id": "msg-1", "webhook-timestamp": str(now), "webhook-signature": theirs}
    assert verify(body, received, secrets) == {"event": "order_paid", "data": {"order": 42}}
    with pytest.raises(WebhookInvalid):
        verify(body, received, secrets[1])


def flip(headers: dict[str, str]) -> dict[str, str]:
    return {**headers, "webhook-signature": headers["webhook-signature"].replace("v1,", "v1,A")}


CHANGES: list[tuple[bytes, Callable[[dict[str, str]], dict[str, str]], float, str]] = [
    (b"{} ", lambda headers: headers, 1_000, "signature"),
    (b"{}", flip, 1_000, "signature"),
    (b"{}", lambda headers: {**headers, "webhook-id": "other"}, 1_000, "signature"),
    (b"{}", lambda headers: {**headers, "webhook-timestamp": "1001"}, 1_000, "signature"),
    (b"{}", lambda headers: {**headers, "webhook-signature": "v2,x é"}, 1_000, "signature"),
    (b"{}", lambda headers: {**headers, "webhook-timestamp": "x"}, 1_000, "malformed"),
    (b"{}", lambda headers: {}, 1_000, "missing"),
    (b"{}", lambda headers: headers, 1_301, "away from now"),
    (b"{}", lambda headers: headers, 699, "away from now"),
]


@pytest.mark.parametrize(("body", "change", "now", "complaint"), CHANGES)
def test_what_was_changed_or_is_old_is_refused(
    body: bytes, change: Callable[[dict[str, str]], dict[str, str]], now: float, complaint: str
) -> None:
    with pytest.raises(WebhookInvalid, match=complaint):
        verify(body, change(sign("m", 1_000, b"{}", SECRET)), SECRET, now=now)


def test_two_secrets_sign_while_one_replaces_the_other() -> None:
    new = new_secret()
    headers = sign("m", 1_000, b"{}", [new, SECRET])
    assert verify(b"{}", headers, SECRET, now=1_000) == verify(b"{}", headers, new, now=1_000) == {}
    with pytest.raises(WebhookInvalid, match="not JSON"):
        verify(b"{", sign("m", 1_000, b"{", SECRET), SECRET, now=1_000)


def test_a_handler_may_say_when_to_retry() -> None:
    app = Forebay("memory://")
    runs: list[int] = []

    @app.job(retry_on=OSError)
    def busy(ctx: Context) -> None:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            raise RetryAfter(timedelta(minutes=5), "the other side is busy")

    with JobTester(app) as jobs:
        app.enqueue("busy")
        jobs.run_all()
        jobs.advance(seconds=299)
        assert runs == [1]
        jobs.advance(seconds=1)
        assert runs == [1, 2]


def test_so_may_one_that_runs_in_a_process_of_its_own() -> None:
    app = Forebay("memory://")

    @app.job(isolate=True)
    def busy(number: int) -> None:
        raise RetryAfter(60)

    store = app.store
    job_id = busy.enqueue(1).id
    (lease,) = store.claim([Want("default", 1)], "me", timedelta(minutes=1))
    with asyncio.Runner() as runner:
        lifespan = Lifespan(app.hooks, runner.run)
        outcome = _run_job(app.registry["busy"], lifespan, Context(lease), runner).outcome(0)
    assert lease.job.id == job_id
    assert isinstance(outcome, Failed)
    assert outcome.after == 60_000_000
    app.close()


def test_a_payload_that_is_not_an_object_is_a_dead_letter(receiver: Receiver) -> None:
    app = app_for(receiver)
    with JobTester(app) as jobs:
        app.store.enqueue([Draft("order_paid", [1])])
        jobs.run_all()
        assert only_state(app) is State.DEAD
        assert json.dumps(receiver.received) == "[]"
