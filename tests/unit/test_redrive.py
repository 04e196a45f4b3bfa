"""A redrive as a plan: what it chooses, how it changes and paces it, when it stops."""

from typing import Any

import pytest

from forebay.core.errors import ForebayError, Invalid
from forebay.core.fingerprint import fingerprint_of
from forebay.core.instant import minutes
from forebay.core.job import Draft, State
from forebay.core.outcome import ABANDONED, Ack, DeadLetter, Failure
from forebay.core.policy import DeadLetters, Routing
from forebay.core.spec import QueueSpec
from forebay.redrive import RedrivePlan, RedriveRun, RedriveStep, chosen, run_redrive
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Want
from forebay.testing.clock import ManualClock


class StoreWithDead:
    """A store on a clock of its own, with dead letters."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)

    def dead(self, payload: Any = None, error: str = "Boom", message: str = "it broke", **fields: Any) -> int:
        (receipt,) = self.store.enqueue([Draft("work", payload, **fields)])
        self.end(fields.get("queue", "default"), DeadLetter(Failure(error, message)))
        self.clock.advance(1_000_000)
        return receipt.id

    def end(self, queue: str, verdict: Any, count: int = 1) -> None:
        leases = self.store.claim([Want(queue, count)], "w", minutes(1))
        self.store.settle([(lease, verdict) for lease in leases])

    def ids(self, **output: Any) -> list[int]:
        return [job.id for job in chosen(self.store, RedrivePlan(**output))]

    def run(self, **output: Any) -> RedriveRun:
        plan = RedrivePlan(**output)
        return run_redrive(
            self.store, RedriveRun(plan, [job.id for job in chosen(self.store, plan)]), wait=lambda _: None
        )


def test_a_plan_chooses_by_what_the_dead_have_in_common() -> None:
    fixture = StoreWithDead()
    mail = fixture.dead(queue="mail", message="no route to 10.0.0.1")
    again = fixture.dead(queue="mail", message="no route to 10.0.0.2")
    other = fixture.dead(error="Late", tenant="t")
    cause = fingerprint_of(fixture.store.get([mail])[0])  # type: ignore[arg-type]
    died_at = fixture.store.get([again])[0].finished_at  # type: ignore[union-attr]
    assert fixture.ids() == [mail, again, other]
    assert fixture.ids(queue="mail") == [mail, again]
    assert fixture.ids(fingerprint=cause) == [mail, again]
    assert fixture.ids(where="LATE") == [other]
    assert fixture.ids(tenant="t") == [other]
    assert fixture.ids(died_from=died_at) == [again, other]
    assert fixture.ids(died_before=died_at) == [mail]
    assert fixture.ids(limit=2) == [mail, again]


def test_what_took_its_holder_along_stays_unless_it_is_named() -> None:
    fixture = StoreWithDead()
    killer, clumsy = fixture.dead(error=ABANDONED), fixture.dead()
    assert fixture.ids() == [clumsy]
    assert fixture.ids(quarantined=True) == [killer, clumsy]


def test_a_sample_is_the_same_for_the_same_seed_and_spread_over_all() -> None:
    fixture = StoreWithDead()
    ids = [fixture.dead() for _ in range(200)]
    sample = fixture.ids(sample=40)
    assert sample == sorted(sample) == fixture.ids(sample=40)
    assert set(sample) < set(ids)
    assert fixture.ids(sample=40, seed=1) != sample
    assert 10 <= len([job_id for job_id in sample if job_id in ids[:100]]) <= 30
    assert fixture.ids(sample=40, limit=3) == fixture.ids(sample=3)
    assert fixture.ids(sample=1_000) == ids


def test_a_patch_changes_payloads_alike_and_leaves_those_that_need_no_change() -> None:
    fixture = StoreWithDead()
    fixture.dead({"to": "nobody", "n": 1})
    right = fixture.dead({"to": "ada", "n": True})
    course = fixture.run(patch={"to": "ada", "n": 1})
    jobs = [job for job in fixture.store.get(course.moved) if job is not None]
    assert [(job.payload, job.state) for job in jobs] == [({"to": "ada", "n": 1}, State.READY)] * 2
    assert fixture.store.get([right]) == [None], "true is not 1"
    unchanged = fixture.dead({"to": "ada", "n": 1}, queue="mail")
    assert fixture.run(patch={"n": 1, "to": "ada"}).moved == [unchanged]


def test_dead_letters_kept_elsewhere_are_found_there_and_return_to_their_queue() -> None:
    fixture = StoreWithDead()
    fixture.store.put_spec(QueueSpec(name="mail", routing=Routing(dead=DeadLetters("graves"))))
    job_id = fixture.dead(queue="mail")
    assert fixture.ids(queue="mail") == []
    assert fixture.run(queue="graves").moved == [job_id]
    assert fixture.store.get([job_id])[0].queue == "mail"  # type: ignore[union-attr]


def test_a_rate_makes_steps_and_waits_between_them() -> None:
    fixture = StoreWithDead()
    ids = [fixture.dead() for _ in range(25)]
    now, waits, steps = [0.0], list[float](), list[RedriveStep]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    course = RedriveRun(RedrivePlan(rate=50), ids)
    run_redrive(fixture.store, course, steps.append, clock=lambda: now[0], wait=wait)
    assert [step.moved for step in steps] == [10, 20, 25]
    assert waits == pytest.approx([0.0, 0.2, 0.2])
    assert course.moved == ids


def test_it_stops_when_too_many_die_again() -> None:
    fixture = StoreWithDead()
    ids = [fixture.dead() for _ in range(50)]
    course = RedriveRun(RedrivePlan(rate=50, stop_at=0.5, stop_after=10), ids)
    run_redrive(
        fixture.store, course, lambda _: fixture.end("default", DeadLetter(Failure("Boom")), 10), wait=lambda _: None
    )
    assert (course.tried, course.died, course.ended) == (10, 10, 10)
    assert course.stopped == "10 of 10 jobs that ended had died again"
    assert len(chosen(fixture.store, RedrivePlan())) == 50


def test_it_goes_on_while_few_die_again() -> None:
    fixture = StoreWithDead()
    ids = [fixture.dead() for _ in range(50)]
    course = RedriveRun(RedrivePlan(rate=50, stop_at=0.5, stop_after=10), ids)

    def work(_: RedriveStep) -> None:
        fixture.end("default", Ack(), 7)
        fixture.end("default", DeadLetter(Failure("Boom")), 3)

    run_redrive(fixture.store, course, work, wait=lambda _: None)
    assert (course.tried, course.stopped) == (50, None)


def test_an_open_job_does_not_count_as_ended() -> None:
    fixture = StoreWithDead()
    course = RedriveRun(RedrivePlan(rate=5, stop_at=0.0, stop_after=1), [fixture.dead() for _ in range(5)])
    run_redrive(fixture.store, course, wait=lambda _: None)
    assert (course.tried, course.ended, course.stopped) == (5, 0, None)


@pytest.mark.parametrize(
    "output",
    [
        {"queue": "no name"},
        {"limit": 0},
        {"sample": -1},
        {"rate": 0.0},
        {"rate": 1e9},
        {"stop_at": 0.5},
        {"stop_at": 2.0, "rate": 1.0},
        {"stop_after": 0},
        {"patch": {}},
        {"patch": {"a": float("nan")}},
        {"died_from": -1},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(output: dict[str, Any]) -> None:
    with pytest.raises(ForebayError) as refusal:
        RedrivePlan(**output)
    assert isinstance(refusal.value, Invalid)
