"""Lanes: gates per field hold jobs together, and the numbers of a spec hold at once. No lane is ever stuck."""

from collections import Counter
from datetime import timedelta
from functools import partial
from itertools import permutations
from random import Random

from forebay.core.gate import condition_gate
from forebay.core.job import State
from forebay.core.lease import Lease
from forebay.core.limits import LANES_MET
from forebay.core.outcome import Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.core.policy import AtMost, Fair, InOrder, Priority, Rate, Until
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import ERROR, Harness

_AT_ONCE = timedelta(0)
_HOUR = timedelta(hours=1)


@case
def a_larger_cap_holds_at_once(h: Harness) -> None:
    for number, per in enumerate((None, "tenant")):
        queue = f"q{number}"
        h.spec(queue, eligibility=AtMost(1, per=per))  # type: ignore[arg-type]
        h.enqueue(5, queue=queue, tenant="t")
        assert (len(h.claim(5, queue)), h.claim(5, queue)) == (1, [])
        h.spec(queue, eligibility=AtMost(3, per=per))  # type: ignore[arg-type]
        assert (len(h.claim(5, queue)), h.claim(5, queue)) == (2, [])


@case
def a_smaller_cap_holds_at_once_and_takes_nothing_away(h: Harness) -> None:
    for number, per in enumerate((None, "tenant")):
        queue = f"q{number}"
        h.spec(queue, eligibility=AtMost(3, per=per))  # type: ignore[arg-type]
        h.enqueue(6, queue=queue, tenant="t")
        leases = h.claim(3, queue)
        h.spec(queue, eligibility=AtMost(1, per=per))  # type: ignore[arg-type]
        for lease in leases[:2]:
            h.ack(lease)
            assert h.claim(5, queue) == []
        h.ack(leases[2])
        assert (len(h.claim(5, queue)), h.claim(5, queue)) == (1, [])


@case
def a_new_cap_counts_what_already_runs(h: Harness) -> None:
    h.enqueue(6)
    leases = h.claim(2)
    h.spec(eligibility=AtMost(3))
    assert (len(h.claim(6)), h.claim(6)) == (1, [])
    h.ack(leases[0])
    assert (len(h.claim(6)), h.claim(6)) == (1, [])


@case
def a_new_cap_per_field_holds_what_is_accepted_from_then_on(h: Harness) -> None:
    h.enqueue(3, tenant="t")
    h.claim(1)
    h.spec(eligibility=AtMost(1, per="tenant"))
    held = h.enqueue(2, tenant="t")
    leases = h.claim(9)
    assert (len(leases), leases[-1].job.id, h.claim(9)) == (3, held[0], [])


@case
def a_cap_that_was_removed_frees_its_jobs(h: Harness) -> None:
    for number, per in enumerate((None, "tenant")):
        queue = f"q{number}"
        h.spec(queue, eligibility=AtMost(1, per=per))  # type: ignore[arg-type]
        h.enqueue(4, queue=queue, tenant="t")
        assert (len(h.claim(4, queue)), h.claim(4, queue)) == (1, [])
        h.spec(queue)
        assert len(h.claim(4, queue)) == 3


@case
def a_cap_that_comes_back_counts_what_started_meanwhile(h: Harness) -> None:
    for number, per in enumerate((None, "tenant")):
        queue = f"q{number}"
        h.spec(queue, eligibility=AtMost(1, per=per))  # type: ignore[arg-type]
        h.enqueue(6, queue=queue, tenant="t")
        leases = h.claim(6, queue)
        h.spec(queue)
        leases += h.claim(2, queue)
        h.spec(queue, eligibility=AtMost(2, per=per))  # type: ignore[arg-type]
        assert h.claim(6, queue) == []
        h.ack(leases[0])
        assert h.claim(6, queue) == []
        h.ack(leases[1])
        assert (len(h.claim(6, queue)), h.claim(6, queue)) == (1, [])


@case
def a_condition_that_was_removed_frees_its_jobs(h: Harness) -> None:
    h.spec(eligibility=Until("go") & Until("paid", per="subject"))
    ids = [h.one(subject=subject) for subject in ("a", "b")]
    assert h.claim(9) == []
    h.spec(eligibility=Until("paid", per="subject"))
    assert h.claim(9) == []
    h.store.set_gate(condition_gate("paid", "b"), 1)
    assert [lease.job.id for lease in h.claim(9)] == ids[1:]
    h.spec()
    assert [lease.job.id for lease in h.claim(9)] == ids[:1]


@case
def queues_that_share_a_cap_apply_their_own_numbers_to_what_all_use(h: Harness) -> None:
    h.spec("mail", eligibility=AtMost(3, shared="gpu"))
    h.spec("media", eligibility=AtMost(1, shared="gpu"))
    h.enqueue(5, queue="mail")
    h.enqueue(5, queue="media")
    lease = h.take("mail")
    assert h.claim(5, "media") == []
    assert len(h.claim(5, "mail")) == 2
    h.spec("mail", eligibility=AtMost(4, shared="gpu"))
    assert len(h.claim(5, "mail")) == 1
    h.ack(lease)
    h.spec("media", eligibility=AtMost(5, shared="gpu"))
    assert len(h.claim(5, "media")) == 2


@case
def a_queue_that_stops_sharing_a_cap_gives_its_slots_back(h: Harness) -> None:
    for number, per in enumerate((None, "tenant")):
        mail, media = f"mail{number}", f"media{number}"
        for queue in (mail, media):
            h.spec(queue, eligibility=AtMost(2, per=per, shared=f"gpu{number}"))  # type: ignore[arg-type]
            h.enqueue(3, queue=queue, tenant="t")
        assert (len(h.claim(3, mail)), h.claim(3, media)) == (2, [])
        h.spec(mail)
        assert len(h.claim(3, media)) == 2


@case
def the_slots_of_a_shared_gate_go_to_the_next_claim(h: Harness) -> None:
    for queue in ("mail", "media"):
        h.spec(queue, eligibility=AtMost(1, per="tenant", shared="gpu"))
    first, second = h.enqueue(2, queue="mail", tenant="t")
    other = h.one(queue="media", tenant="t")
    lease = h.take("mail")
    assert (lease.job.id, h.claim(2, "media"), h.claim(2, "mail")) == (first, [], [])
    h.ack(lease)
    lease = h.take("media")
    assert (lease.job.id, h.claim(2, "mail")) == (other, [])
    h.ack(lease)
    assert h.take("mail").job.id == second


@case
def caps_per_tenant_and_per_subject_never_stick_in_whatever_order_jobs_end(h: Harness) -> None:
    """Three jobs run, each at two gates; in every order of their ends the rest goes on."""
    for number, order in enumerate(permutations(range(3))):
        queue = f"q{number}"
        h.spec(queue, eligibility=AtMost(1, per="tenant") & AtMost(1, per="subject"))
        pairs = [(tenant, subject) for _ in range(2) for tenant in "abc" for subject in "xyz"]
        for tenant, subject in pairs:
            h.one(queue=queue, tenant=tenant, subject=subject)
        left, running = len(pairs), list[Lease]()
        while left:
            running += h.claim(9, queue)
            assert running, f"{left} jobs are stuck after ends in the order {order}"
            assert max(Counter(lease.job.tenant for lease in running).values()) == 1
            assert max(Counter(lease.job.subject for lease in running).values()) == 1
            h.ack(running.pop(order[left % 3] % len(running)))
            left -= 1


@case
def lanes_of_two_gates_lose_no_room_through_any_endings(h: Harness) -> None:
    """After every step a claim starts all that has room, as far as each could start alone."""
    draw = Random(11)
    caps = {"tenant": 2, "subject": 1}
    h.spec(eligibility=AtMost(2, per="tenant") & AtMost(1, per="subject"), selection=Priority())
    running: list[Lease] = []
    endings: list[Verdict] = [Ack(), Ack(), Retry(0, ERROR), Release(), DeadLetter(ERROR), Cancel()]
    for _ in range(120):
        match draw.randrange(4):
            case 0 | 1:
                fields = {"tenant": draw.choice("abc"), "subject": draw.choice("xyz"), "priority": draw.randrange(3)}
                h.one(**{name: value for name, value in fields.items() if draw.random() < 0.9})
            case 2 if running:
                h.settle(running.pop(draw.randrange(len(running))), draw.choice(endings))
            case _ if ready := h.jobs(state=State.READY):
                h.store.cancel([draw.choice(ready).id])
            case _:
                pass
        running += h.claim(draw.randrange(1, 4))
        if draw.random() < 0.5:
            running += h.claim(50)
            used = Counter((name, getattr(lease.job, name)) for lease in running for name in caps)
            used = Counter({key: count for key, count in used.items() if key[1] is not None})
            assert all(count <= caps[name] for (name, _), count in used.items()), used
            for job in h.jobs(state=State.READY):
                free = [used[name, getattr(job, name)] < most for name, most in caps.items() if getattr(job, name)]
                assert not all(free), f"job {job.id} has room everywhere and was not claimed"


@case
def a_lane_that_leaves_its_room_unused_leaves_it_to_the_next(h: Harness) -> None:
    """A gate opens for the first of two lanes, which then waits elsewhere, is cancelled or expires."""
    for number, way in enumerate(("elsewhere", "cancelled", "expired")):
        queue = f"q{number}"
        h.spec(queue, eligibility=AtMost(1, per="kind") & AtMost(1, per="tenant"))
        busy, holder = h.one(queue=queue, kind="other", tenant="a"), h.one(queue=queue, tenant="c")
        leases = {lease.job.id: lease for lease in h.claim(9, queue)}
        assert set(leases) == {busy, holder}
        expires = h.now() + h.short if way == "expired" else None
        first = h.one(queue=queue, tenant="a" if way == "elsewhere" else "b", expires_at=expires)
        second = h.one(queue=queue, tenant="d")
        assert h.claim(9, queue) == []
        if way == "expired":
            h.advance(h.short + 1)
        h.ack(leases[holder])
        if way == "cancelled":
            h.store.cancel([first])
        assert [lease.job.id for lease in h.claim(9, queue)] == [second], way


@case
def a_claim_that_finds_all_held_leaves_wait_asleep_until_there_is_room(h: Harness) -> None:
    for number, per in enumerate((None, "tenant")):
        queue = f"q{number}"
        h.spec(queue, eligibility=AtMost(1, per=per))  # type: ignore[arg-type]
        h.enqueue(3, queue=queue, tenant="t")
        lease = h.take(queue)
        assert h.claim(3, queue) == []
        assert h.store.wait([queue], _AT_ONCE) is False
        waiter = h.asleep_in(partial(h.store.wait, [queue], _HOUR))
        held = h.one(queue=queue, tenant="t")
        assert h.state(held) is State.READY
        assert not waiter.ends_within(0.05), "a held job does not end the sleep"
        h.ack(lease)
        assert waiter.result() is True
        assert len(h.claim(3, queue)) == 1


@case
def wait_is_woken_by_all_that_makes_room(h: Harness) -> None:
    h.spec("other", eligibility=AtMost(1, per="tenant", shared="gpu"))
    for number, way in enumerate(("set_gate", "put_spec", "release", "cancel", "shared")):
        queue = f"q{number}"
        caps = AtMost(1, per="kind") & Until("go", per="subject") & AtMost(1, per="tenant", shared="gpu")
        h.spec(queue, eligibility=caps)
        h.one(queue="other", tenant="g")
        shared = h.take("other")
        held = {
            "set_gate": {"subject": way},
            "put_spec": {"subject": way},
            "release": {"subject": way},
            "cancel": {"kind": "dear"},
            "shared": {"tenant": "g"},
        }[way]
        first = h.one(queue=queue, **held)
        if way == "cancel":
            h.spec(queue, eligibility=AtMost(4, per="kind"))
            h.one(queue=queue, kind="wide", cost=2)
            h.claim(9, queue)
            first, _ = h.one(queue=queue, kind="wide", cost=4), h.one(queue=queue, kind="wide")
        assert h.claim(9, queue) == [], way
        waiter = h.asleep_in(partial(h.store.wait, [queue], _HOUR))
        match way:
            case "set_gate":
                h.store.set_gate(condition_gate("go", way), 1)
            case "put_spec":
                h.spec(queue)
            case "release":
                assert h.store.release("go", 1, way) == 1
            case "cancel":
                h.store.cancel([first])
            case _:
                h.ack(shared)
        assert waiter.result() is True, way
        assert len(h.claim(1, queue)) == 1, way
        h.ack(shared)


@case
def no_job_is_held_where_a_gate_has_room_again(h: Harness) -> None:
    h.spec(eligibility=AtMost(1, per="subject") & AtMost(1, per="tenant"))
    for tenant in "abab":
        h.one(tenant=tenant, subject="s")
    lease = h.take()
    assert h.claim(9) == []
    assert h.store.backlog(["q"])[0].held == 3
    h.ack(lease)
    assert h.store.backlog(["q"])[0].held == 0


@case
def thousands_of_lanes_that_close_at_once_hold_up_nothing_for_long(h: Harness) -> None:
    """A claim meets a bounded number of closed lanes and returns; the next ones go on, and nothing is stuck."""
    count = LANES_MET + 500
    h.spec(eligibility=Until("open", per="subject"))
    drafts = [h.draft(subject=f"s{number}") for number in range(count)]
    for begin in range(0, count, 1_000):
        h.store.enqueue(drafts[begin : begin + 1_000])
    free = h.one()
    came: list[int] = []
    for _ in range(3):
        came += [lease.job.id for lease in h.claim(5)]
    assert came == [free]
    assert h.store.wait(["q"], _AT_ONCE) is False
    opened = [f"s{number}" for number in (0, LANES_MET - 1, LANES_MET, count - 1)]
    for subject in opened:
        h.store.set_gate(condition_gate("open", subject), 1)
    assert [lease.job.subject for lease in h.claim(9)] == opened
    h.spec()
    left = 0
    while leases := h.claim(1_000):
        left += len(leases)
    assert left == count - len(opened)


@case
def a_flood_behind_one_gate_does_not_hold_a_claim_up(h: Harness) -> None:
    """However many jobs one lane has, it is met once."""
    h.spec(eligibility=AtMost(1, per="tenant"))
    for _ in range(LANES_MET // 1_000 + 1):
        h.enqueue(1_000, tenant="flood")
    light = h.one(tenant="light")
    assert {lease.job.tenant for lease in h.claim(2)} == {"flood", "light"}
    assert h.state(light) is State.RUNNING


@case
def expired_jobs_hold_up_nothing_for_long(h: Harness) -> None:
    """A claim meets a bounded number of expired jobs; what comes after them is claimed all the same."""
    h.spec(eligibility=AtMost(1, per="tenant"))
    for _ in range(LANES_MET // 1_000 + 1):
        h.enqueue(1_000, tenant="t", expires_at=h.now() + 20 * h.short)
    fresh = h.one(tenant="t")
    h.advance(20 * h.short + 1)
    came: list[int] = []
    for _ in range(4):
        came += [lease.job.id for lease in h.claim(1)]
    assert came == [fresh]


@case
def shares_caps_rates_and_lines_together_leave_nothing_behind(h: Harness) -> None:
    draw = Random(5)
    h.spec(
        share=Fair(weights={"a": 3}),
        selection=Priority(),
        eligibility=AtMost(5)
        & Rate(8, h.short_delta)
        & AtMost(2, per="tenant")
        & Rate(3, h.short_delta, per="kind")
        & InOrder(per="subject"),
    )
    ids = [
        h.one(
            tenant=draw.choice("abc"),
            kind=draw.choice("kl"),
            subject=draw.choice("stuvw"),
            priority=draw.randrange(3),
            cost=draw.choice((1, 1, 2)),
        )
        for _ in range(60)
    ]
    done: list[int] = []
    running: list[Lease] = []
    for _ in range(1_000):
        running += h.claim(draw.randrange(1, 5))
        assert sum(lease.job.cost for lease in running) <= 5
        assert len({lease.job.subject for lease in running}) == len(running)
        if running and draw.random() < 0.8:
            lease = running.pop(draw.randrange(len(running)))
            failed = draw.random() < 0.2 and lease.job.delivery < 3
            h.fail(lease) if failed else h.ack(lease)
            done += [] if failed else [lease.job.id]
        else:
            h.advance(h.short // 4)
        if len(done) == len(ids):
            break
    assert sorted(done) == ids
    h.nothing_left()


@case_if(Need.DURABLE)
def lanes_are_open_and_counted_again_after_a_reopening(h: Harness) -> None:
    h.spec(eligibility=AtMost(2, per="tenant") & Rate(1, 1_000 * h.short_delta, burst=3, per="kind"))
    h.enqueue(4, tenant="a")
    other = h.one(tenant="b")
    lease = h.take()
    assert lease.job.tenant == "a"
    h.reopen()
    leases = h.claim(9)
    assert sorted(str(lease.job.tenant) for lease in leases) == ["a", "b"]
    assert other in [lease.job.id for lease in leases]
    h.reopen()
    h.ack(lease)
    assert h.claim(9) == [], "the rate is spent"
    h.store.set_gate("rate/q/kind/work", 5)
    h.reopen()
    assert len(h.claim(9)) == 1
