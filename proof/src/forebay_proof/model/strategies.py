"""What the model-based test plays with: a queue for each policy, small enough that its limits are met, and arguments.

`VARIANTS` are specs that a running queue is given later; jobs accepted before must keep what they were stamped with.
"""

from hypothesis import strategies as st

from forebay.core.gate import condition_gate
from forebay.core.instant import micros, minutes, ms, seconds
from forebay.core.job import Draft, State
from forebay.core.outcome import (
    Abandoned,
    Dropped,
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Snoozed,
    Succeeded,
    Unaccounted,
    Withdrawn,
)
from forebay.core.policy import (
    Aging,
    AtMost,
    Bounded,
    DeadLetters,
    Deadline,
    Exponential,
    Fair,
    FanOut,
    Fifo,
    InOrder,
    KeepFor,
    LatestWins,
    Priority,
    Rate,
    Retained,
    Route,
    Routing,
    Shed,
    Unbounded,
    Until,
    While,
)
from forebay.core.spec import QueueSpec

LOG = "log"
SCHEDULES = "schedules"
JOBS = "jobs"
_TWICE = Routing(max_attempts=2, backoff=Exponential(ms(500), seconds(2)))
_RATES = Rate(1, seconds(1), "tenant", burst=3) & Rate(4, seconds(3), shared="api")
_TURNS = AtMost(4, "subject") & AtMost(4, shared="gpu") & Rate(2, seconds(1), burst=4)
_BURIED = Routing(max_attempts=2, backoff=Exponential(ms(500), seconds(2)), dead=DeadLetters("graves"))

SPECS = [
    QueueSpec(name="keep", retention=KeepFor(seconds(30)), routing=_TWICE),
    QueueSpec(name="prio", selection=Priority(), routing=_TWICE),
    QueueSpec(name="aging", selection=Aging(seconds(1))),
    QueueSpec(name="deadline", selection=Deadline(), retention=KeepFor(ms(1))),
    QueueSpec(name="fair", share=Fair(weights={"a": 3}), routing=_TWICE),
    QueueSpec(name="tight", capacity=Bounded(3), routing=_TWICE, key_window=seconds(2)),
    QueueSpec(name="order", eligibility=InOrder(), routing=_TWICE),
    QueueSpec(name="block", eligibility=InOrder(dead_head="block") & AtMost(1), routing=_TWICE),
    QueueSpec(name="cap", eligibility=AtMost(3) & AtMost(1, "subject") & AtMost(2, "tenant"), routing=_TWICE),
    QueueSpec(name="until", eligibility=Until("go") & Until("ok", "tenant") & InOrder()),
    QueueSpec(name="merge", merge=LatestWins(), routing=_TWICE, key_window=minutes(1)),
    QueueSpec(name="buried", routing=_BURIED),
    QueueSpec(name="graves", routing=Routing(max_attempts=1, dead=DeadLetters(keep=seconds(20), limit=2))),
    QueueSpec(name="quiet", merge=LatestWins(quiet=seconds(1), at_most=seconds(3)), selection=Priority()),
    QueueSpec(name="unique", unique=While(), routing=_TWICE),
    QueueSpec(name="shed", selection=Priority(), capacity=Bounded(3, Shed("lowest")), routing=_TWICE),
    QueueSpec(name="broker", fan_out=FanOut((Route("k", "tight"), Route("*", "shed"), Route("**", "keep")))),
    QueueSpec(name="dear", selection=Priority(), eligibility=AtMost(4, shared="gpu"), routing=_TWICE),
    QueueSpec(name="stock", eligibility=Until("go") & AtMost(4, shared="gpu"), routing=_TWICE),
    QueueSpec(name="pace", selection=Priority(), eligibility=Rate(2, seconds(1), burst=3), routing=_TWICE),
    QueueSpec(name="paces", share=Fair(), eligibility=_RATES & AtMost(4, shared="gpu"), routing=_TWICE),
    QueueSpec(name="turns", share=Fair(weights={"a": 2}), selection=Priority(), eligibility=_TURNS, routing=_TWICE),
    QueueSpec(name=LOG, retention=Retained(2)),
]
QUEUES = ["plain", *(spec.name for spec in SPECS if not spec.is_log)]
HOLDING = ["cap", "until", "dear", "stock", "pace", "paces", "turns"]
"""Queues that hold jobs by what they share, or by time."""
GATED = [*HOLDING, "block", "order", "merge"]
GATES = [
    condition_gate("go"),
    condition_gate("ok", "a"),
    condition_gate("ok", "b"),
    "cap/cap",
    "cap/cap/subject/s",
    "cap/block",
    "cap/@gpu",
    "rate/@api",
    "rate/pace",
    "rate/paces/tenant/a",
    "rate/turns",
]
VARIANTS = [
    QueueSpec(name="plain", selection=Priority(), key_window=seconds(1)),
    QueueSpec(name="plain", retention=KeepFor(seconds(10))),
    QueueSpec(name="keep", routing=Routing(max_attempts=1)),
    QueueSpec(name="prio", selection=Fifo()),
    QueueSpec(name="fair", share=Fair(by="kind", default=2)),
    QueueSpec(name="fair"),
    QueueSpec(name="tight", capacity=Bounded(1)),
    QueueSpec(name="tight", capacity=Unbounded()),
    QueueSpec(name="order", eligibility=InOrder(dead_head="block")),
    QueueSpec(name="block", eligibility=InOrder()),
    QueueSpec(name="cap", eligibility=AtMost(1) & AtMost(2, "subject")),
    QueueSpec(name="dear", eligibility=AtMost(3, shared="gpu") & AtMost(2, "tenant")),
    QueueSpec(name="stock", eligibility=AtMost(3) & Until("ok", "tenant"), selection=Priority()),
    QueueSpec(name="pace", eligibility=Rate(1, seconds(2), burst=4) & InOrder()),
    QueueSpec(name="pace", eligibility=Rate(4, seconds(1), shared="api")),
    QueueSpec(name="paces", eligibility=Rate(3, seconds(1), "tenant")),
    QueueSpec(name="turns", eligibility=AtMost(4, shared="gpu") & Rate(2, seconds(1), burst=4)),
    QueueSpec(name="turns", share=Fair(by="kind"), eligibility=AtMost(4, "tenant")),
    QueueSpec(name="buried"),
    QueueSpec(name="buried", routing=Routing(max_attempts=1, dead=DeadLetters("tight"))),
    QueueSpec(name="graves", routing=Routing(dead=DeadLetters(limit=1))),
    QueueSpec(name="order", eligibility=InOrder(dead_head="block"), routing=_BURIED),
    QueueSpec(name="merge"),
    QueueSpec(name="merge", merge=LatestWins(), retention=KeepFor(seconds(5))),
    QueueSpec(name="quiet", merge=LatestWins()),
    QueueSpec(name="quiet", merge=LatestWins(quiet=seconds(2)), capacity=Bounded(2, Shed())),
    QueueSpec(name="unique", unique=While((State.WAITING, State.RUNNING, State.DEAD))),
    QueueSpec(name="unique", key_window=seconds(2)),
    QueueSpec(name="shed", capacity=Bounded(2, Shed("oldest")), eligibility=AtMost(1, "subject")),
    QueueSpec(name="shed", selection=Priority()),
    QueueSpec(name="broker", fan_out=FanOut((Route("l", "merge"),), "drop")),
    QueueSpec(name="broker"),
    QueueSpec(name=LOG, retention=Retained(3)),
    QueueSpec(name=LOG, retention=Retained(3, window=seconds(3))),
    QueueSpec(name=LOG, retention=Retained(3, window=seconds(3), lagging="block")),
    QueueSpec(name=LOG),
]

SECOND = micros(seconds(1))
START = 1_700_000_000_250_000
"""Not a whole second: timers that are rounded up to one are late then."""

GAVE_UP = "GaveUp"
"""The kind of error by which the handlers here give up at once."""

OUTCOMES: dict[str, Outcome] = {
    "ack": Succeeded(),
    "ack with a result": Succeeded(b'{"n":1}'),
    "ack with a result that is kept": Succeeded(b'{"n":2}', 5 * SECOND),
    "fail": Failed(Failure("Boom", "it broke")),
    "fail, again at once": Failed(Failure("Boom", "it broke"), 0),
    "drop": Dropped(Failure(GAVE_UP, "useless")),
    "release": Interrupted(),
    "snooze": Snoozed(2 * SECOND),
    "take back": Abandoned(),
    "lose track of": Unaccounted(),
    "withdraw": Withdrawn(),
    "withdraw and keep": Withdrawn(SECOND),
}

PICK = st.integers(0, 30)
"""Which one of a list whose length is known only when the rule runs; small ones are the newest."""
FEW = st.integers(1, 4)
NAME = st.sampled_from(["hourly", "daily"])
BACK = st.sampled_from([False, False, True])
KEY = st.sampled_from("xy")
SUBJECT = st.sampled_from(["s", "t"])
COST = st.sampled_from([1, 1, 2, 3])
TENANT = st.sampled_from(["a", "b", None])
PAYLOAD = st.integers(0, 2)
DELAY = st.sampled_from([0, 0, 1, SECOND, 90 * SECOND])
LASTS = st.sampled_from([0, 1, 500_000, 3 * SECOND])
OUTCOME = st.sampled_from(sorted(OUTCOMES))
LEASE_LENGTHS = st.sampled_from([ms(1), ms(1500), seconds(5), minutes(1)])


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Any draft; the rule says for which queue."""
    return Draft(
        draw(st.sampled_from("kl")),
        draw(PAYLOAD),
        priority=draw(st.integers(-1, 2)),
        delay=draw(DELAY),
        key=draw(st.sampled_from([None, None, "x"])),
        tenant=draw(TENANT),
        subject=draw(st.one_of(st.none(), SUBJECT)),
        max_attempts=draw(st.sampled_from([None, None, 1])),
        cost=draw(st.sampled_from([1, 1, 1, 2, 4])),
    )
