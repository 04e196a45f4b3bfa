"""A shop in the middle of its day, for browser tests and screenshots: minutes of work, by a clock that is moved.

Queues of several shapes, tenants, schedules, a log, dead letters of a few causes, workers that hold leases. The same
seed gives the same day. The store is closed again, so that a server can open it with a real clock.
"""

import math
import random
from datetime import timedelta

import msgspec

from forebay.core.instant import days, seconds
from forebay.core.job import Draft, Job
from forebay.core.outcome import Ack, DeadLetter, Failure, Retry, Verdict
from forebay.core.policy import Aging, AtMost, Bounded, Exponential, Fair, InOrder, KeepFor, Reject, Retained, Routing
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.serve.metrics.history import HISTORY_LOG, STEPS, HistoryStep
from forebay.serve.metrics.history import STEP as HISTORY_STEP
from forebay.serve.security.keys import ensure_log
from forebay.store.clock import SystemClock
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay.testing.clock import ManualClock
from forebay.work.cron import NEVER, Cron, Timetable

SECOND = 1_000_000
STEP = 5
TENANTS = ("acme", "birch", "corvid", "delta")
OWNERS = ("worker-a.1812", "worker-a.1813", "worker-b.904")

SPECS = (
    QueueSpec(
        name="mail",
        selection=Aging(seconds(60)),
        share=Fair("tenant", {"acme": 3}),
        eligibility=AtMost(60, "tenant"),
        routing=Routing(4, Exponential(seconds(1), seconds(600))),
        retention=KeepFor(days(2)),
    ),
    QueueSpec(name="media", capacity=Bounded(20_000, Reject()), routing=Routing(3)),
    QueueSpec(name="ledger-sync", eligibility=InOrder("subject")),
    QueueSpec(name="reports", routing=Routing(2)),
    QueueSpec(name="clicks", retention=Retained(partitions=3, window=days(7))),
)
_WORK = (("mail", "welcome-mail"), ("mail", "invoice-mail"), ("media", "resize"), ("ledger-sync", "post-entry"))
_TRACE = 'Traceback (most recent call last):\n  File "shop/mail.py", line 88, in send\n    server.login(user, secret)\n'


def set_up(url: str, seed: int = 7, minutes: int = 5, pace: int = 40) -> None:
    """Play the last minutes, at this many jobs a second."""
    rng = random.Random(seed)
    clock = ManualClock(SystemClock().now() - minutes * 60 * SECOND)
    store = open_store(url, clock=clock)
    try:
        for spec in SPECS:
            store.put_spec(spec)
        _schedules(store)
        _day(store, rng)
        for second in range(0, minutes * 60, STEP):
            clock.advance(SECOND)
            _arrive(store, rng, pace * STEP, second)
            clock.advance((STEP - 1) * SECOND - len(OWNERS) * SECOND // 20)
            _work(store, rng, clock, pace * STEP, second)
        _leave_open(store)
        _present(store)
    finally:
        store.close()


def _schedules(store: Store) -> None:
    for name, rule, zone, kind in (
        ("nightly-report", "30 1 * * *", "Europe/Berlin", "sales-report"),
        ("heartbeat", "@every 90s", "UTC", "heartbeat"),
        ("invoices", "0 9 1 * *", "America/New_York", "invoice-run"),
        ("cleanup", "*/15 * * * *", "UTC", "cleanup"),
    ):
        timetable = Timetable(Cron(rule, zone))
        first = timetable.cron.next_after(store.now()) or NEVER
        draft = Draft(kind, {"scope": "all"}, "reports")
        store.put_schedule(Schedule(name, timetable.rule, first, draft, zone, paused=name == "cleanup"))
    first = next(each.next_at for each in store.schedules() if each.name == "heartbeat")
    store.fire("heartbeat", first, first + 90 * SECOND, Draft("heartbeat", {"scope": "all"}, "reports"))


def _arrive(store: Store, rng: random.Random, pace: int, second: int) -> None:
    swell = 1.0 + 0.5 * (second % 100 > 60)
    drafts = []
    for _ in range(int(rng.uniform(0.7, 1.3) * pace * swell)):
        queue, kind = rng.choices(_WORK, (5, 2, 3, 2))[0]
        number = rng.randrange(100_000)
        drafts.append(
            Draft(
                kind,
                {"order": number, "to": f"user{number}@example.org", "password": "hunter2"},
                queue,
                tenant=rng.choices(TENANTS, (6, 2, 1, 1))[0],
                subject=f"order-{number % 500}",
                meta={"trace": f"{rng.getrandbits(64):016x}"} if number % 10 == 0 else None,
            )
        )
    store.enqueue(drafts)
    store.append("clicks", [b'{"page": "/cart"}'] * 3, ["a", "b", "c"])


def _verdict(rng: random.Random, job: Job) -> Verdict:
    draw = rng.random()
    if job.kind == "invoice-mail" and draw < 0.35:
        message = f"(535, 'user {rng.randrange(9000)} at 10.0.0.{rng.randrange(99)} refused')"
        error = Failure("smtplib.SMTPAuthenticationError", message, _TRACE)
    elif job.kind == "resize" and draw < 0.18:
        error = Failure("ValueError", f"cannot identify image file /tmp/up/{rng.getrandbits(40):x}.heic")
    elif draw < 0.04:
        error = Failure("TimeoutError", f"no answer within {rng.randrange(5, 30)} s")
    else:
        return Ack(b'{"ok": true}' if job.queue == "mail" else None)
    return DeadLetter(error) if job.attempt >= 2 else Retry(rng.randrange(1, 4) * SECOND, error)


def _work(store: Store, rng: random.Random, clock: ManualClock, pace: int, second: int) -> None:
    slow = 0.55 if 100 < second < 160 else 1.12
    for owner in OWNERS:
        share = int(pace * slow * 1.25 / len(OWNERS)) + 1
        wants = [Want(queue, max(1, share // 3)) for queue in ("mail", "media", "ledger-sync", "reports")]
        leases = store.claim(wants, owner, timedelta(seconds=60))
        clock.advance(SECOND // 20)
        store.settle([(lease, _verdict(rng, lease.job)) for lease in leases])


def _day(store: Store, rng: random.Random) -> None:
    """What servers have counted of the day before: busy at noon, quiet at night, and an hour in which none ran."""
    ensure_log(store, HISTORY_LOG, days(2))
    newest = store.now() // HISTORY_STEP
    for ago in range(STEPS, 1, -1):
        if 90 < ago <= 102:
            continue
        swell = 1.2 + math.sin((STEPS - ago) / STEPS * 2 * math.pi)
        done = int(6_000 * swell * rng.uniform(0.85, 1.15))
        failed = rng.randrange(40) if ago % 9 else done // 12
        counts = {"mail": [done, done - failed, failed, 0], "media": [done // 3, done // 3, 0, failed // 9]}
        store.append(HISTORY_LOG, [msgspec.json.encode(HistoryStep(newest - ago, counts))])


def _present(store: Store) -> None:
    queues, kinds = ("mail", "media", "ledger-sync", "reports"), tuple(sorted({kind for _, kind in _WORK}))
    for number, owner in enumerate((*OWNERS, "worker-b.905")):
        host, _, pid = owner.partition(".")
        store.announce(Presence(owner, host, int(pid), queues, kinds, 16, number), timedelta(hours=1))


def _leave_open(store: Store) -> None:
    """Something waits, something runs."""
    later = [Draft("digest-mail", {"week": 46}, "mail", tenant=t, delay=3_600 * SECOND) for t in TENANTS]
    store.enqueue([*later, Draft("sales-report", {"region": "north"}, "reports", subject="order-1")])
    store.enqueue([Draft("resize", {"file": f"cat{n}.heic"}, "media", tenant="acme") for n in range(40)])
    store.enqueue([Draft("post-entry", {"n": n}, "ledger-sync", subject="order-7") for n in range(6)])
    for number, owner in enumerate(OWNERS):
        wants = [Want("media", 4 + number), Want("reports", 1), Want("ledger-sync", 2)]
        store.claim(wants, owner, timedelta(minutes=30))
