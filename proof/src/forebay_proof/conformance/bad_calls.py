"""Bad arguments of verbs: refused with a typed error before anything is written, alike on every store."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from forebay.core.errors import BatchTooLarge, Invalid
from forebay.core.instant import days
from forebay.core.job import State
from forebay.core.lease import Settled
from forebay.core.limits import BATCH_BYTES, MAX_BATCH, MAX_INSTANT, PAYLOAD_BYTES
from forebay.core.outcome import Ack
from forebay.core.policy import LatestWins, Retained
from forebay.core.schedule import Schedule
from forebay.store.protocol import Query, Want
from forebay_proof.conformance.bad_input import BAD_INSTANTS, BAD_NAMES, BAD_TEXTS
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import LONG, Harness

BAD_LIMITS: list[Any] = [0, -1, MAX_BATCH + 1, 1.0, "1", True, None]
BAD_DURATIONS: list[Any] = [timedelta(0), -timedelta(1), timedelta(microseconds=1), days(8), 30, 1.5, "30s", None]


def _all_refused(
    h: Harness, verb: Callable[[Any], object], values: Iterable[Any], kind: type[Invalid] = Invalid
) -> None:
    with h.unchanged():
        for value in values:
            refused(kind, partial(verb, value))


@case
def a_claim_from_a_bad_queue_name_is_refused(h: Harness) -> None:
    h.one()
    _all_refused(h, lambda name: h.claim(1, name), BAD_NAMES)


@case
def one_name_is_not_a_list_of_queues(h: Harness) -> None:
    h.one()
    _all_refused(h, h.store.backlog, ["q"])
    _all_refused(h, lambda queues: h.store.wait(queues, timedelta(0)), ["q"])


@case
def a_claim_of_a_bad_number_is_refused(h: Harness) -> None:
    h.one()
    _all_refused(h, h.claim, [0, -1, 1.0, "1", True, None])


@case
def a_claim_of_too_many_is_refused(h: Harness) -> None:
    h.one()
    half = MAX_BATCH // 2
    _all_refused(h, h.claim, [MAX_BATCH + 1], BatchTooLarge)
    wants = [Want("q", half), Want("other", half + 1)]
    _all_refused(h, lambda wants: h.store.claim(wants, "worker", LONG), [wants], BatchTooLarge)
    assert h.store.claim([], "worker", LONG) == []


@case
def a_claim_with_a_bad_owner_is_refused(h: Harness) -> None:
    h.one()
    _all_refused(h, lambda owner: h.claim(owner=owner), [*BAD_TEXTS, None])


@case
def a_bad_lease_time_is_refused(h: Harness) -> None:
    h.enqueue(2)
    lease = h.take()
    _all_refused(h, lambda duration: h.claim(lease_for=duration), BAD_DURATIONS)
    _all_refused(h, lambda duration: h.store.extend([lease], duration), BAD_DURATIONS)


@case
def a_bad_limit_is_refused_by_every_verb_that_has_one(h: Harness) -> None:
    h.spec("log", retention=Retained())
    h.store.append("log", [b"1"])
    h.dead()
    verbs: list[Callable[[Any], object]] = [
        h.store.promote,
        h.store.overdue,
        lambda limit: h.store.purge(State.DEAD, MAX_INSTANT, limit),
        lambda limit: h.store.browse(Query(), 0, limit),
        lambda limit: h.store.queues("", limit),
        h.store.totals,
        lambda limit: h.store.read("log", 0, -1, limit),
        lambda limit: h.store.trim("log", MAX_INSTANT, limit),
    ]
    for verb in verbs:
        _all_refused(h, verb, BAD_LIMITS)


@case
def a_batch_over_the_limit_is_refused_by_every_verb(h: Harness) -> None:
    h.spec("log", retention=Retained())
    job_id = h.one()
    lease = h.take()
    many = MAX_BATCH + 1
    verbs: list[Callable[[Any], object]] = [
        lambda count: h.store.settle([(lease, Ack())] * count),
        lambda count: h.store.extend([lease] * count, LONG),
        lambda count: h.store.cancel([job_id] * count),
        lambda count: h.store.redrive([job_id] * count),
        lambda count: h.store.purge_dead([job_id] * count),
        lambda count: h.store.get([job_id] * count),
        lambda count: h.store.backlog(["q"] * count),
        lambda count: h.store.append("log", [b"1"] * count),
        lambda count: h.store.wait(["q"] * count, timedelta(0)),
    ]
    for verb in verbs:
        _all_refused(h, verb, [many], BatchTooLarge)


@case
def a_batch_of_too_many_bytes_is_refused_whole(h: Harness) -> None:
    h.spec("log", retention=Retained())
    h.spec("merging", merge=LatestWins())
    h.enqueue(70)
    leases = h.claim(70)
    body = b'"' + b"x" * (PAYLOAD_BYTES - 2) + b'"'
    drafts = [h.draft(body=body)] * 70
    merging = [h.draft(body=body, queue="merging", subject="s")] * 70
    assert len(body) * 70 > BATCH_BYTES
    with h.unchanged():
        refused(BatchTooLarge, lambda: h.store.enqueue(drafts))
        refused(BatchTooLarge, lambda: h.store.enqueue(merging))
        refused(BatchTooLarge, lambda: h.store.append("log", [body] * 70))
        error = refused(BatchTooLarge, lambda: h.store.settle([(lease, Ack(body)) for lease in leases]))
    assert (error.verb, error.size, error.limit) == ("settle", len(body) * 70, BATCH_BYTES)
    assert len(h.store.enqueue(drafts[:64])) == 64


@case
def ids_that_are_not_integers_are_refused(h: Harness) -> None:
    h.dead()
    values: list[Any] = [["1"], [1.0], [True], [None], [1, "x"], "12", {1: 2}]
    for verb in (h.store.get, h.store.cancel, h.store.redrive, h.store.purge_dead):
        _all_refused(h, verb, values)


@case
def unknown_ids_are_not_an_error(h: Harness) -> None:
    ids = [0, -1, 2**62]
    assert h.store.get(ids) == [None] * 3
    assert h.store.redrive(ids) == []
    assert h.store.purge_dead(ids) == []
    assert len(h.store.cancel(ids)) == 3


@case
def a_purge_of_unfinished_jobs_is_refused(h: Harness) -> None:
    h.one()
    values: list[Any] = [State.WAITING, State.READY, State.RUNNING, "everything", None]
    _all_refused(h, lambda state: h.store.purge(state, h.now(), 1), values)


@case
def a_bad_instant_is_refused_by_every_verb(h: Harness) -> None:
    h.dead()
    h.spec("log", retention=Retained())
    h.store.append("log", [b"1"])
    h.store.put_schedule(Schedule("s", "rule", h.now(), h.draft()))
    verbs: list[Callable[[Any], object]] = [
        lambda instant: h.store.purge(State.DEAD, instant, 1),
        lambda instant: h.store.trim("log", instant, 1),
        lambda instant: h.store.pause("q", instant),
        lambda instant: h.store.fire("s", instant, MAX_INSTANT, h.draft()),
        lambda instant: h.store.fire("s", h.now(), instant, h.draft()),
    ]
    for verb in verbs:
        _all_refused(h, verb, BAD_INSTANTS)


@case
def a_bad_queue_name_is_refused_by_every_verb(h: Harness) -> None:
    verbs: list[Callable[[Any], object]] = [
        h.store.pause,
        h.store.resume,
        lambda name: h.store.backlog([name]),
        lambda name: h.store.wait([name], timedelta(0)),
        lambda name: h.store.append(name, [b"1"]),
        h.store.extent,
    ]
    for verb in verbs:
        _all_refused(h, verb, BAD_NAMES)


@case
def a_bad_gate_is_refused(h: Harness) -> None:
    _all_refused(h, lambda name: h.store.set_gate(name, 1), ["", None, 5, "\ud800", "a\0"])
    _all_refused(h, lambda limit: h.store.set_gate("until/go", limit), [-1, 1.5, "1", True, 2**31])


@case
def a_bad_name_of_a_schedule_finds_nothing_or_is_refused(h: Harness) -> None:
    h.store.put_schedule(Schedule("s", "rule", h.now(), h.draft()))
    with h.unchanged():
        for name in BAD_NAMES:
            with suppress(Invalid):
                assert h.store.drop_schedule(name) is False
            with suppress(Invalid):
                assert h.store.fire(name, h.now(), MAX_INSTANT, h.draft()) is False


@case
def a_bad_group_is_refused(h: Harness) -> None:
    h.spec("log", retention=Retained())
    h.store.append("log", [b"1"])
    _all_refused(h, lambda group: h.store.commit("log", group, 0, 0), BAD_NAMES)


@case
def a_bad_offset_is_refused(h: Harness) -> None:
    h.spec("log", retention=Retained())
    h.store.append("log", [b"1"])
    _all_refused(h, lambda offset: h.store.commit("log", "g", 0, offset), [-2, 1, 1.0, "0", True, None])
    _all_refused(h, lambda after: h.store.read("log", 0, after, 1), [-2, 1.0, "0", True, None])


@case
def a_bad_key_of_a_log_entry_is_refused(h: Harness) -> None:
    h.spec("log", retention=Retained())
    _all_refused(h, lambda key: h.store.append("log", [b"1"], [key]), BAD_TEXTS)


@case
def a_bad_query_or_configuration_is_refused(h: Harness) -> None:
    h.one()
    _all_refused(h, lambda after: h.store.browse(Query(), after, 1), [1.0, "0", True, None])
    _all_refused(h, lambda query: h.store.browse(query, 0, 1), [None, "q", {"queue": "q"}])
    _all_refused(h, h.store.put_spec, [None, "q", {"name": "q"}])
    _all_refused(h, h.store.put_schedule, [None, "s", {"name": "s"}])


@case
def a_bad_time_to_wait_is_refused(h: Harness) -> None:
    values: list[Any] = [-timedelta(1), days(2), 5, None]
    _all_refused(h, lambda duration: h.store.wait(["q"], duration), values)


@case
def an_invalid_verdict_refuses_the_whole_call(h: Harness) -> None:
    h.enqueue(2)
    first, second = h.claim(2)
    values: list[Any] = ["ack", None, Ack, Settled.APPLIED]
    _all_refused(h, lambda verdict: h.store.settle([(first, Ack()), (second, verdict)]), values)
    assert h.ack(first) is h.ack(second) is Settled.APPLIED
