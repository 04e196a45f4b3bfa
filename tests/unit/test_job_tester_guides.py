"""What the guides show, under a `JobTester`, one row a feature: in virtual time, and without a sleep.

docs/guides/testing.md lists what a tester does not cover. Transactions: tests/contrib/test_job_tester_transactions.py.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from forebay import Context, Draft, Drop, Forebay, QueueSpec, RetryAfter, Snooze, State
from forebay.core.errors import JobCancelled, JobFailed, QueueFull
from forebay.core.instant import to_datetime
from forebay.core.policy import AtMost, Bounded, Fair, InOrder, LatestWins, Priority, Retained, Until
from forebay.store.protocol import Query
from forebay.testing import JobTester
from forebay.vault import Vault
from forebay.work.log_readers import Bridge, Consumer
from forebay.work.run import TIMEOUT

pytestmark = pytest.mark.timeout(60)


def ended(fb: Forebay, job_id: int) -> tuple[State, str]:
    job = fb.get(job_id)
    assert job is not None
    return job.state, job.errors[-1].kind if job.errors else ""


def retries_wait_for_their_backoff(fb: Forebay, seen: list[Any]) -> None:
    @fb.job(max_attempts=4)
    def send(ctx: Context) -> None:
        seen.append(ctx.attempt)
        raise (RetryAfter(3_600), ConnectionError(), Snooze(60), ConnectionError(), ConnectionError())[len(seen) - 1]

    with JobTester(fb) as jobs:
        job_id = fb.enqueue("send").id
        assert (jobs.run_all(), jobs.advance(minutes=59), jobs.advance(minutes=1)) == (1, 0, 1)
        jobs.advance(hours=1)
        assert seen == [1, 2, 3, 3, 4], "a snooze charges no attempt"
        assert ended(fb, job_id) == (State.DEAD, "ConnectionError")
        assert fb.redrive([job_id]) == 1
        jobs.fail_next("send", KeyError())
        jobs.run_all()
        assert len(seen) == 5


def useless_retries_are_left_out(fb: Forebay, seen: list[Any]) -> None:
    @fb.job(drop_on=KeyError, retry_on=(ConnectionError, KeyError))
    def send(error: str) -> None:
        seen.append(error)
        raise {"key": KeyError(), "value": ValueError(), "drop": Drop("no"), "net": ConnectionError()}[error]

    with JobTester(fb) as jobs:
        ids = [send.enqueue(error).id for error in ("key", "value", "drop", "net")]
        jobs.run_all()
        assert [ended(fb, job_id)[0] for job_id in ids] == [State.DEAD, State.DEAD, State.DEAD, State.WAITING]


def timeouts_end_runs(fb: Forebay, seen: list[Any]) -> None:
    with JobTester(fb) as jobs:

        @fb.job(timeout=30, max_attempts=1)
        async def wait() -> None:
            await asyncio.sleep(31)
            seen.append("never")

        @fb.job(timeout=30, max_attempts=1)
        def count() -> None:
            jobs.clock.advance(31_000_000)

        ids = [wait.enqueue().id, count.enqueue().id]
        jobs.run_all()
        assert [ended(fb, job_id) for job_id in ids] == [(State.DEAD, TIMEOUT)] * 2
        assert seen == []


def a_job_is_cancelled_before_it_begins(fb: Forebay, seen: list[Any]) -> None:
    @fb.job(keep_result=True)
    def send() -> None:
        seen.append(1)

    with JobTester(fb) as jobs:
        receipt = send.using(delay=60).enqueue()
        assert fb.cancel(receipt.id) == "cancelled"
        jobs.advance(hours=1)
        assert seen == []


def a_job_is_cancelled_while_it_runs(fb: Forebay, seen: list[Any]) -> None:
    @fb.job(keep_result=True)
    def plain(ctx: Context) -> None:
        while not ctx.cancelled:
            seen.append(str(fb.cancel(ctx.job.id)))

    @fb.job(keep_result=True)
    async def awaits(ctx: Context) -> None:
        seen.append(str(fb.cancel(ctx.job.id)))
        await asyncio.sleep(60)
        seen.append("never")

    with JobTester(fb):
        for kind in ("plain", "awaits"):
            with pytest.raises(JobCancelled):
                fb.result(fb.enqueue(kind).id)
        assert seen == ["requested", "requested"]


def isolated_handlers_run_in_the_test(fb: Forebay, seen: list[Any]) -> None:
    @fb.job(isolate=True)
    def render(page: int) -> None:
        seen.append(page)

    with JobTester(fb) as jobs:
        render.enqueue(7)
        jobs.run_all()
        assert seen == [7]


def delays_instants_and_ends(fb: Forebay, seen: list[Any]) -> None:
    @fb.job
    def remind(user: int) -> None:
        seen.append(user)

    with JobTester(fb) as jobs:
        in_an_hour = to_datetime(jobs.clock.now() + 3_600_000_000)
        remind.using(delay=60).enqueue(1)
        remind.using(run_at=in_an_hour).enqueue(2)
        late = remind.using(delay=7_200, expires_at=in_an_hour).enqueue(3)
        jobs.advance(minutes=1)
        assert seen == [1]
        jobs.advance(minutes=59)
        assert seen == [1, 2]
        jobs.advance(hours=2)
        assert (seen, ended(fb, late.id)[0]) == ([1, 2], State.DEAD)


def schedules_fire_in_their_zone(fb: Forebay, seen: list[Any]) -> None:
    with JobTester(fb) as jobs:
        jobs.clock.advance(int(datetime(2030, 3, 30, tzinfo=UTC).timestamp() * 1_000_000) - jobs.clock.now())

        @fb.cron("30 1 * * *", tz="Europe/Berlin")
        def nightly() -> None:
            seen.append(f"{to_datetime(jobs.clock.now()):%d %H:%M}")

        jobs.advance(days=2)
        assert seen == ["30 00:30", "31 00:30", "31 23:30"], "the clocks change on the 31st"


def schedules_do_not_overlap(fb: Forebay, seen: list[Any]) -> None:
    with JobTester(fb) as jobs:

        @fb.cron("@every 60s", overlap="queue", catch_up="last")
        @fb.job
        def poll() -> None:
            seen.append(jobs.clock.now())
            if len(seen) == 1:
                raise RetryAfter(600)

        jobs.advance(minutes=9)
        assert len(seen) == 1, "its tick waits until the first job has ended"
        jobs.advance(minutes=5)
        assert len(seen) > 3


def urgent_jobs_and_tenants_take_their_turns(fb: Forebay, seen: list[Any]) -> None:
    fb.queue(QueueSpec(name="mail", selection=Priority()))
    fb.queue(QueueSpec(name="work", share=Fair(by="tenant")))

    @fb.job
    def note(word: str) -> None:
        seen.append(word)

    with JobTester(fb) as jobs:
        for priority in (1, 3, 2):
            note.using(queue="mail", priority=priority).enqueue(f"p{priority}")
        jobs.run_all()
        for tenant in ("a", "a", "a", "b"):
            note.using(queue="work", tenant=tenant).enqueue(tenant)
        jobs.run_all()
        assert seen[:3] == ["p3", "p2", "p1"]
        assert "b" in seen[3:5]


def limits_hold_jobs_back(fb: Forebay, seen: list[Any]) -> None:
    fb.queue(QueueSpec(name="orders", eligibility=InOrder(per="subject") & AtMost(1)))
    fb.queue(QueueSpec(name="gated", eligibility=Until("stock")))

    @fb.job(max_attempts=2)
    def ship(order: int) -> None:
        seen.append(order)

    with JobTester(fb) as jobs:
        jobs.fail_next("ship", ConnectionError())
        for order in (1, 2):
            ship.using(queue="orders", subject="ann").enqueue(order)
        assert jobs.run_all() == 1
        jobs.advance(minutes=5)
        assert seen == [1, 2], "the second waits for the retry of the first"
        ship.using(queue="gated").enqueue(3)
        assert jobs.run_all() == 0
        jobs.store.release("stock", 1)
        assert jobs.run_all() == 1


def full_queues_and_newer_versions_of_a_thing(fb: Forebay, seen: list[Any]) -> None:
    fb.queue(QueueSpec(name="small", capacity=Bounded(1)))
    fb.queue(QueueSpec(name="pages", merge=LatestWins()))

    @fb.job
    def index(text: str) -> None:
        seen.append(text)

    with JobTester(fb) as jobs:
        index.using(queue="small").enqueue("first")
        with pytest.raises(QueueFull):
            index.using(queue="small").enqueue("second")
        for text in ("old", "new"):
            index.using(queue="pages", subject="page 1").enqueue(text)
        jobs.run_all()
        assert sorted(seen) == ["first", "new"]


def a_key_makes_one_job_of_two(fb: Forebay, seen: list[Any]) -> None:
    @fb.job
    def fetch(order: int) -> None:
        fb.enqueue("pack", {"order": order}, key=f"pack-{order}")

    @fb.job
    def pack(order: int) -> None:
        seen.append(order)

    with JobTester(fb) as jobs:
        fetch.enqueue(7)
        jobs.crash_next("fetch")
        jobs.run_all()
        jobs.assert_enqueued("pack", 2, order=7)
        assert seen == [7]


def results_come_back_by_their_type(fb: Forebay, seen: list[Any]) -> None:
    @fb.job(keep_result=True, max_attempts=1)
    def report(broken: bool) -> dict[str, datetime]:
        if broken:
            raise ValueError("no data")
        return {"made_at": datetime(2030, 1, 1, tzinfo=UTC)}

    with JobTester(fb):
        assert report.enqueue(False).result() == {"made_at": datetime(2030, 1, 1, tzinfo=UTC)}
        with pytest.raises(JobFailed, match="no data"):
            report.enqueue(True).result()


def events_are_read(fb: Forebay, seen: list[Any]) -> None:
    @fb.job(queue="mail", max_attempts=2)
    def send(to: str) -> None: ...

    async def next_event() -> str:
        async for event in fb.events(since="start", kinds="send"):
            return event.change
        raise AssertionError

    with JobTester(fb) as jobs:
        jobs.fail_next("send", ConnectionError())
        receipt = send.enqueue("ada")
        jobs.advance(hours=1)
        events = list(fb.events(since="start", follow=False))
        assert {event.job_id for event in events} == {receipt.id}
        assert [event.change for event in events] == ["accepted", "claimed", "retried", "claimed", "acked"]
        assert [event.change for event in fb.events(since=events[3].id, follow=False)] == ["acked"]
        assert asyncio.run(next_event()) == "accepted"
        assert list(fb.events(follow=False)) == []


def sealed_payloads_are_opened(_: Forebay, seen: list[Any]) -> None:
    fb = Forebay("memory://", vault=Vault({"a": bytes(32)}))

    @fb.job(keep_result=True)
    def send(card: str) -> str:
        seen.append(card)
        return card

    with JobTester(fb) as jobs:
        receipt = send.enqueue("4711")
        assert b"4711" not in jobs.enqueued("send")[0].draft.body
        jobs.assert_enqueued("send", 1, card="4711")
        assert receipt.result() == "4711"
        assert seen == ["4711"]


def hooks_and_layers_surround_jobs(fb: Forebay, seen: list[Any]) -> None:
    @fb.on_startup
    async def start() -> None:
        seen.append("start")

    @fb.on_shutdown
    def stop() -> None:
        seen.append("stop")

    @fb.around_job
    def layer(ctx: Context) -> Iterator[None]:
        seen.append(f"before {ctx.job.kind}")
        yield

    @fb.around_enqueue
    def stamp(draft: Draft) -> Iterator[Draft]:
        seen.append(f"put {draft.kind}")
        yield draft

    @fb.job
    async def send() -> None: ...

    with JobTester(fb) as jobs:
        send.enqueue()
        jobs.run_all()
    assert seen == ["put send", "start", "before send", "stop"]


def webhooks_are_retried_in_virtual_time(fb: Forebay, seen: list[Any]) -> None:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204 if len(seen) > 1 else 503)
            self.send_header("Retry-After", "3600")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/orders"
        paid = fb.webhook("paid", url=url, secret="whsec_" + "a" * 32, allow=["127.0.0.1"], keep_result=True)
        with JobTester(fb) as jobs:
            receipt = paid.enqueue(order=7)
            assert (jobs.run_all(), jobs.advance(minutes=59), jobs.advance(minutes=1)) == (1, 0, 1)
            assert receipt.result() == 204
        server.shutdown()
        thread.join()


def coroutines_and_searches(fb: Forebay, seen: list[Any]) -> None:
    @fb.job(keep_result=True)
    async def double(number: int) -> int:
        return number * 2

    async def test() -> None:
        with JobTester(fb) as jobs:
            receipts = await asyncio.gather(*[double.aenqueue(number) for number in range(3)])
            assert [job.id async for job in fb.ajobs(Query(payload=(("number", "1"),)))] == [receipts[1].id]
            assert await fb.acancel(receipts[2].id) == "cancelled"
            assert await receipts[0] == 0
            assert jobs.run_all() == 1

    asyncio.run(test())


def logs_are_read_and_bridged(fb: Forebay, seen: list[Any]) -> None:
    @fb.job(queue="counts")
    def count(page: str) -> None:
        seen.append(page)

    fb.queue(QueueSpec(name="clicks", retention=Retained(partitions=2)))
    with JobTester(fb) as jobs:
        jobs.store.append("clicks", [b'{"page":"home"}', b'{"page":"about"}'], keys=["ada", "bob"])
        consumer = Consumer(jobs.store, "clicks", "billing", lambda entry: seen.append(entry.body), commit="after")
        consumer.step()
        assert len(seen) == 2
        consumer.close()
        bridge = Bridge(jobs.store, "clicks", "jobs", lambda entry: [Draft("count", body=entry.body, queue="counts")])
        while bridge.step() == 0:
            pass
        jobs.run_all()
        assert sorted(seen[2:]) == ["about", "home"]


FEATURES: list[Callable[[Forebay, list[Any]], None]] = [
    retries_wait_for_their_backoff,
    useless_retries_are_left_out,
    timeouts_end_runs,
    a_job_is_cancelled_before_it_begins,
    a_job_is_cancelled_while_it_runs,
    isolated_handlers_run_in_the_test,
    delays_instants_and_ends,
    schedules_fire_in_their_zone,
    schedules_do_not_overlap,
    urgent_jobs_and_tenants_take_their_turns,
    limits_hold_jobs_back,
    full_queues_and_newer_versions_of_a_thing,
    a_key_makes_one_job_of_two,
    results_come_back_by_their_type,
    events_are_read,
    sealed_payloads_are_opened,
    hooks_and_layers_surround_jobs,
    webhooks_are_retried_in_virtual_time,
    coroutines_and_searches,
    logs_are_read_and_bridged,
]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.__name__)
def test_a_feature_of_the_guides(
    feature: Callable[[Forebay, list[Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(seconds: float) -> None:
        raise AssertionError(f"a sleep of {seconds} s")

    monkeypatch.setattr(time, "sleep", refuse)
    with Forebay("memory://") as fb:
        feature(fb, [])
