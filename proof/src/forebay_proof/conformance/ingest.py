"""Sources that repeat themselves, and dead jobs that give way to new ones."""

from forebay.core.errors import Invalid, QueueFull
from forebay.core.job import State
from forebay.core.policy import Bounded, DeadLetters, InOrder, Reject, Routing
from forebay.redrive import successor
from forebay.store.protocol import Checkpoint
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import QUEUE, Harness
from forebay_proof.conformance.racing import answers, race


@case
def drafts_that_a_source_repeats_are_accepted_once(h: Harness) -> None:
    assert h.store.ingested("lake/1") is None
    first, second = Checkpoint(1, 2, b"a"), Checkpoint(1, 3, b"b")
    drafts = [h.draft(payload=number) for number in range(2)]
    ingested = h.store.ingest("lake/1", None, first, drafts)
    assert ingested is not None
    assert ingested.taken == 2
    assert h.store.ingest("lake/1", None, first, drafts) is None
    assert h.store.ingested("lake/1") == first
    assert h.store.ingest("lake/1", first, second, [h.draft(payload=2)]) is not None
    assert h.store.ingest("lake/2", None, first, drafts[:1]) is not None
    assert [job.payload for job in h.jobs()] == [0, 1, 2, 0]


@case
def a_refused_ingest_does_not_move_its_source(h: Harness) -> None:
    h.spec(capacity=Bounded(1, Reject()))
    with h.unchanged():
        refused(QueueFull, lambda: h.store.ingest("lake", None, Checkpoint(1, 2, b"a"), [h.draft(), h.draft()]))
        assert h.store.ingested("lake") is None


@case
def racing_ingests_of_one_source_move_it_once(h: Harness) -> None:
    ingested = answers(race(8, lambda _: h.store.ingest("lake", None, Checkpoint(1, 1, b"a"), [h.draft()])))
    assert len([each for each in ingested if each is not None]) == 1
    assert len(h.drain()) == 1


@case_if(Need.DURABLE)
def the_position_of_a_source_outlives_a_reopening(h: Harness) -> None:
    place = Checkpoint(7, 1, b"seven")
    h.store.ingest("lake", None, place, [h.draft()])
    h.reopen()
    assert h.store.ingested("lake") == place
    assert h.store.ingest("lake", None, place, [h.draft()]) is None
    assert len(h.jobs()) == 1


@case
def a_replaced_dead_job_becomes_a_new_one(h: Harness) -> None:
    dead = h.dead(payload={"to": "ada"}, tenant="t", priority=2, meta={"trace": "1"})
    (receipt,) = h.store.replace_dead([(dead, successor(h.get(dead), b'{"to":"ada"}'))])
    assert receipt is not None
    job = h.get(receipt.id)
    assert (job.payload, job.tenant, job.priority, job.state) == ({"to": "ada"}, "t", 2, State.READY)
    assert job.meta == {"trace": "1", "redriven_from": str(dead)}
    assert h.state(dead) is None
    assert h.backlog().dead == 0
    assert h.drain() == [receipt.id]
    h.nothing_left()


@case
def only_dead_jobs_are_replaced_and_each_once(h: Harness) -> None:
    dead, waiting = h.dead(), h.one()
    draft = h.draft(payload=1)
    first, unknown, alive, again = h.store.replace_dead(
        [(dead, draft), (10**12, draft), (waiting, draft), (dead, h.draft(payload=2))]
    )
    assert first is not None
    assert h.get(first.id).payload == 1
    assert (unknown, alive, again) == (None, None, None)
    assert h.store.replace_dead([(dead, draft)]) == [None]
    assert sorted(h.drain()) == [waiting, first.id]


@case
def new_jobs_come_in_the_order_of_the_dead_jobs_that_they_replace(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    first, second, third = (h.dead(subject="s") for _ in range(3))
    pairs = [(job_id, h.draft(payload=job_id, subject="s")) for job_id in (second, third, first, second)]
    ids = [receipt.id for receipt in h.store.replace_dead(pairs) if receipt is not None]
    assert [h.get(job_id).payload for job_id in ids] == [second, third, first]
    assert h.drain() == sorted(ids) == ids


@case
def a_draft_with_a_key_replaces_no_dead_job(h: Harness) -> None:
    """Within the window of its key it would be a duplicate of the dead job, and both would be gone."""
    dead = h.dead(key="x")
    with h.unchanged():
        refused(Invalid, lambda: h.store.replace_dead([(dead, h.draft(key="x"))]))
    assert h.state(dead) is State.DEAD


@case
def replacing_a_dead_head_frees_its_line(h: Harness) -> None:
    h.spec(eligibility=InOrder(dead_head="block"))
    head = h.dead(subject="s")
    following = h.one(subject="s")
    assert h.claim() == []
    (receipt,) = h.store.replace_dead([(head, successor(h.get(head), b"1"))])
    assert receipt is not None
    assert h.drain() == [following, receipt.id]
    h.nothing_left()


@case
def a_dead_letter_kept_elsewhere_is_replaced_in_its_own_queue(h: Harness) -> None:
    h.spec(routing=Routing(dead=DeadLetters("dead-letters")))
    dead = h.dead()
    (receipt,) = h.store.replace_dead([(dead, successor(h.get(dead), b"1"))])
    assert receipt is not None
    assert h.get(receipt.id).queue == QUEUE
    assert h.backlog("dead-letters").dead == 0


@case
def a_refused_replacement_changes_nothing(h: Harness) -> None:
    h.spec(capacity=Bounded(1, Reject()))
    dead = h.dead()
    h.one()
    with h.unchanged():
        refused(QueueFull, lambda: h.store.replace_dead([(dead, h.draft())]))
