"""The users of the queues: producers that send drafts, an operator that interferes, and their queues and schedules.

Promise: each draft has a serial number in its payload, so that its job can be found in the ledger. A producer that did
not get an answer sends again if its drafts have keys, and otherwise leaves them as perhaps accepted. A refusal is
noted as such: nothing of it may be found later.
"""

from collections import deque
from collections.abc import Sequence
from itertools import cycle
from typing import Final

from msgspec.structs import replace

from forebay.core.errors import PartlyDone, QueueFull
from forebay.core.instant import hours, ms, seconds
from forebay.core.job import Draft, State
from forebay.core.policy import (
    AtMost,
    Bounded,
    Exponential,
    Fair,
    FanOut,
    FullJitter,
    InOrder,
    KeepFor,
    LatestWins,
    Priority,
    Rate,
    Route,
    Routing,
    Shed,
)
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Query, Receipt
from forebay_proof.sim.evidence import SentDraft
from forebay_proof.sim.faults import Kind
from forebay_proof.sim.worker import SimContext
from forebay_proof.sim.world import EPOCH, SECOND, Process, SteppedRole

QUICK: Final = FullJitter(ms(200), seconds(2))
_KEYS: Final = hours(4)
CAPACITY: Final = 5

QUEUES: Final = (
    QueueSpec(name="plain", routing=Routing(3, QUICK), key_window=_KEYS),
    QueueSpec(name="kept", retention=KeepFor(hours(24)), selection=Priority(), routing=Routing(2, QUICK)),
    QueueSpec(
        name="order", eligibility=InOrder(), routing=Routing(3, Exponential(ms(100), seconds(1))), key_window=_KEYS
    ),
    QueueSpec(name="cap", eligibility=AtMost(2), routing=Routing(4, QUICK), key_window=_KEYS),
    QueueSpec(name="small", capacity=Bounded(CAPACITY), routing=Routing(3, QUICK), key_window=_KEYS),
    QueueSpec(name="latest", merge=LatestWins(), routing=Routing(3, QUICK), key_window=_KEYS),
    QueueSpec(name="fair", share=Fair(weights={"big": 3}), routing=Routing(3, QUICK), key_window=_KEYS),
    QueueSpec(name="dear", eligibility=AtMost(4), routing=Routing(3, QUICK), key_window=_KEYS),
    QueueSpec(
        name="lanes",
        share=Fair(weights={"big": 3}),
        eligibility=AtMost(4) & AtMost(3, per="tenant") & AtMost(2, per="subject") & Rate(4, seconds(1), per="tenant"),
        routing=Routing(3, QUICK),
        key_window=_KEYS,
    ),
    QueueSpec(name="paced", eligibility=Rate(2, seconds(1), burst=3), routing=Routing(3, QUICK), key_window=_KEYS),
    QueueSpec(name="shed", capacity=Bounded(CAPACITY, Shed()), routing=Routing(3, QUICK), key_window=_KEYS),
    QueueSpec(name="broker", fan_out=FanOut((Route("**", "plain"), Route("**", "paced")))),
    QueueSpec(name="cron", routing=Routing(4, QUICK)),
)

_COPIES: Final = {spec.name: len(spec.fan_out.routes) for spec in QUEUES if spec.fan_out is not None}

SCHEDULES: Final = (
    ("every15", "@every 15s ; catch_up=all(1000)"),
    ("every40", "@every 40s ; catch_up=all(1000) overlap=skip"),
    ("thirty", "*/30 * * * * *"),
    ("jitter", "@every 25s ; catch_up=all(1000) jitter=3s"),
)

_DOES: Final = (
    ("work", 60, Kind.RAISE),
    ("raise", 12, Kind.RAISE),
    ("snooze", 6, Kind.SNOOZE),
    ("drop", 4, Kind.DROP),
    ("hang", 6, Kind.HANG),
    ("poison", 4, Kind.POISON),
    ("hold", 3, Kind.HOLD),
)
_AGAIN_WITHIN: Final = 20 * SECOND
_KIND_OF: Final = {does: kind for does, _, kind in _DOES}
_ALWAYS: Final = 1_000
_OFTEN: Final = ("raise", "poison", "hold", "drop")


def chosen_queues(chosen: Sequence[QueueSpec]) -> list[QueueSpec]:
    """These, those that a broker among them leads to, and the last of all, which the schedules use."""
    routes = [route.queue for spec in chosen if spec.fan_out is not None for route in spec.fan_out.routes]
    others = [spec for spec in QUEUES if spec.name in routes and spec not in chosen]
    return [*chosen, *others, QUEUES[-1]]


def schedule(name: str, rule: str, next_at: int) -> Schedule:
    draft = Draft("tick", {"does": "work", "us": 100_000, "cron": name}, queue="cron")
    return Schedule(name, rule, next_at, draft)


class Producer(Process):
    """Sends drafts, one call after another."""

    def __init__(self, number: int, around: SimContext) -> None:
        super().__init__(f"p{number}")
        self._around = around
        self._world = around.world
        self._store = around.connect(self)
        self._number = number
        self._serial = number * 10_000_000
        self._pending: tuple[list[Draft], list[SentDraft]] | None = None
        self._recent: deque[tuple[list[Draft], list[SentDraft]]] = deque(maxlen=8)
        self.sending = True
        self.pause = around.world.random.choice(around.pauses)
        self.actor = SteppedRole(around.world, self, "producer", self.step)

    @property
    def done(self) -> bool:
        return not self.sending and self._pending is None

    def step(self) -> float:
        if self._pending is None:
            if not self.sending:
                return 1.0
            self._pending = self._again() or self._compose()
            self._recent.append(self._pending)
        drafts, sent_drafts = self._pending
        keyed = sent_drafts[0].keyed
        for sent_draft in sent_drafts:
            sent_draft.refused = False
        try:
            receipts = self._store.enqueue(drafts)
        except QueueFull:
            self._around.faults.count(Kind.FULL)
            for sent_draft in sent_drafts:
                sent_draft.refused = sent_draft.sent == 0
            self._pending = None
            return self.pause
        except PartlyDone as error:
            self._accepted(sent_drafts, error.answers)
            left = [place for place, answer in enumerate(error.answers) if answer is None]
            self._pending = ([drafts[place] for place in left], [sent_drafts[place] for place in left])
            if not keyed or isinstance(error.cause, QueueFull):
                self._pending = None
            raise
        except ConnectionError:
            if not keyed:
                self._pending = None
            raise
        self._pending = None
        self._accepted(sent_drafts, receipts)
        return self.pause * 2 * self._world.random.random()

    def _accepted(self, sent_drafts: Sequence[SentDraft], receipts: Sequence[object]) -> None:
        for sent_draft, receipt in zip(sent_drafts, receipts, strict=True):
            if isinstance(receipt, Receipt):
                sent_draft.ids = [*sent_draft.ids, *(receipt.copies or (receipt.id,))]
                sent_draft.merged = sent_draft.merged or receipt.merged
                sent_draft.answered_at = sent_draft.answered_at or self._world.now
        self._world.record(f"accepted {[sent_draft.ids for sent_draft in sent_drafts]}")

    def _again(self) -> tuple[list[Draft], list[SentDraft]] | None:
        """A call with keys that comes once more, as from a source that repeats itself."""
        world = self._world
        since = world.now - _AGAIN_WITHIN
        recent = [call for call in self._recent if call[1][0].keyed and call[1][0].begun_at > since]
        return world.random.choice(recent) if recent and world.chance(self._around.repeats) else None

    def _compose(self) -> tuple[list[Draft], list[SentDraft]]:
        world = self._world
        queue = world.random.choice(self._around.queues[:-1])
        keyed = world.chance(0.7)
        drafts, sent_drafts = [], []
        for _ in range(world.random.choice((1, 1, 2, 4))):
            self._serial += 1
            draft = self._draft(queue, keyed)
            copies = _COPIES.get(queue, 1)
            sent_draft = SentDraft(self._serial, queue, draft.subject, keyed, draft.delay, world.now, copies)
            self._around.evidence.sent_drafts[self._serial] = sent_draft
            drafts.append(draft)
            sent_drafts.append(sent_draft)
        return drafts, sent_drafts

    def _draft(self, queue: str, keyed: bool) -> Draft:
        world = self._world
        draw, subjects = world.random, self._around.subjects
        (does,) = draw.choices([name for name, _, _ in _DOES], [weight for _, weight, _ in _DOES])
        if not self._around.faults.allows(_KIND_OF[does]):
            does = "work"
        kind = "slow" if does == "hang" else draw.choice(("swift", "swift", "frail"))
        # One job in ten outlives its lease by far: only a renewer keeps it.
        long = world.chance(0.1) and kind != "slow"
        plan = {
            "n": self._serial,
            "does": does,
            "us": world.between(4 * SECOND, 9 * SECOND) if long else world.between(2_000, SECOND),
            "times": draw.choice((1, 2, _ALWAYS)) if does in _OFTEN else world.between(1, 2),
            "snooze": world.between(0, 2 * SECOND),
            "ghostly": world.chance(0.3),
            "yields": world.chance(0.5),
        }
        return Draft(
            kind,
            plan,
            queue=queue,
            priority=world.between(0, 3),
            delay=world.between(0, 4 * SECOND) if world.chance(0.25) else 0,
            key=f"k{self._serial}" if keyed else None,
            tenant=draw.choice(self._around.tenants),
            # Each producer has its own subjects: then the order of its calls is the order of the line.
            subject=f"s{self._number}.{world.between(1, subjects)}" if queue in ("order", "latest", "lanes") else None,
            cost=world.between(1, 3) if queue in ("dear", "paced") else 1,
        )


class Operator(Process):
    """Cancels, redrives, pauses, registers schedules again."""

    def __init__(self, around: SimContext) -> None:
        super().__init__("operator")
        self._around = around
        self._world = around.world
        self._store = around.connect(self)
        self._redrives = 0
        self._zones = cycle(("Etc/UTC", "UTC"))
        self.actor = SteppedRole(around.world, self, "operator", self.step)

    def step(self) -> float:
        world, faults = self._world, self._around.faults
        kind = world.random.choice((Kind.CANCEL, Kind.REDRIVE, Kind.REDRIVE, Kind.PAUSE, Kind.RESCHEDULE))
        if faults.allows(kind):
            match kind:
                case Kind.CANCEL:
                    self._cancel()
                case Kind.REDRIVE:
                    self._redrive()
                case Kind.PAUSE:
                    queue = world.random.choice(self._around.queues)
                    self._store.pause(queue, self._store.now() + world.between(SECOND, 4 * SECOND))
                    faults.count(kind)
                case _:
                    self._reschedule(*world.random.choice(SCHEDULES))
                    faults.count(kind)
        return world.random.random() * 6

    def _reschedule(self, name: str, rule: str) -> None:
        edited = replace(schedule(name, rule, EPOCH), zone=next(self._zones))
        if self._around.edits_slots:
            # Another zone moves the schedule back; its ticks are taken all the same.
            self._store.put_schedule(edited)
            return
        # As an application does when it starts.
        self._store.put_spec(self._world.random.choice(self._around.specs))
        for known in self._store.schedules():
            if known.name == name and not known.paused:
                self._store.put_schedule(known)

    def _cancel(self) -> None:
        known = [
            sent_draft.ids[0] for sent_draft in list(self._around.evidence.sent_drafts.values())[-10:] if sent_draft.ids
        ]
        if known:
            chosen = self._world.random.choice(known)
            self._world.record(f"cancels {chosen}")
            self._store.cancel([chosen])
            self._around.faults.count(Kind.CANCEL)

    def _redrive(self) -> None:
        dead = [job.id for job in self._store.browse(Query(state=State.DEAD), 0, 50).jobs]
        others = [sent_draft.ids[0] for sent_draft in self._around.evidence.sent_drafts.values() if sent_draft.ids]
        if dead and others and self._redrives < 12:
            self._redrives += 1
            # Also one that is not dead: it must not move.
            chosen = [self._world.random.choice(dead) for _ in range(self._world.between(1, 2))]
            chosen.append(self._world.random.choice(others))
            if self._store.redrive(chosen):
                self._around.faults.count(Kind.REDRIVE)
