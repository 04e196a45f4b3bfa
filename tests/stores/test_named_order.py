"""Named queues that differ in their order: FIFO, priority, fair, coalescing. On every store.

First the classic failure, with the containment taken away: another `QueueSpec`, or a few lines of the naive queue that
people write by hand. Then the same thing happens to the named configuration. One clock, turned by hand; no sleeping.
"""

from collections import Counter

from msgspec.structs import replace

from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.named import COALESCING, FAIR, FIFO, PRIORITY
from forebay.core.outcome import Failed
from forebay.core.policy import AtMost, Fair, LatestWins, Priority
from forebay.core.spec import QueueSpec
from tests.stores.world import BOOM, HOUR, SECOND, Begin, World, payloads, steps


def test_fifo_head_of_line_blocking_and_order_under_parallelism(begin: Begin) -> None:
    parallel = begin(QueueSpec(name="q"))
    parallel.send(*steps("a", 2))
    first, second = parallel.claim(2)
    assert payloads([second, first]) == ["a2", "a1"], "two workers hold one subject: a2 may well be finished before a1"

    one_at_a_time = begin(QueueSpec(name="q", eligibility=AtMost(1)))
    one_at_a_time.send(*steps("a", 1), *steps("b", 1))
    one_at_a_time.claim()
    assert one_at_a_time.claim() == [], "order by one worker: a slow head holds up a stranger"

    world = begin(FIFO("q"))
    world.send(*steps("a", 3), *steps("b", 1))
    a1, b1 = world.claim(10)
    assert payloads([a1, b1]) == ["a1", "b1"], "one of each subject at a time, side by side"
    world.done([b1])
    world.settle([a1], Failed(BOOM), lambda: 0.9)
    assert world.claim(10) == [], "a failed head still blocks its own subject"
    world.clock.advance(HOUR)
    [a1] = world.claim(10)
    world.reap()
    world.reopen()
    world.clock.advance(HOUR)
    [a1] = world.claim(10)
    assert (a1.job.payload, a1.job.delivery) == ("a1", 3), "after a retry and a crash it is still the first"
    world.done([a1])
    order = []
    while leases := world.claim(10):
        order += payloads(leases)
        world.done(leases)
    assert order == ["a2", "a3"]


def turn_of_the_low_one(world: World, rounds: int) -> int | None:
    """Every ten seconds an urgent job arrives and one is served: in which second is it the turn of the old low one?"""
    [low] = world.send(Draft("low"))
    for number in range(rounds):
        world.send(Draft("high", priority=5))
        [lease] = world.claim()
        if lease.job.id == low:
            return 10 * number
        world.done([lease])
        world.clock.advance(10 * SECOND)
    return None


def test_priority_starvation(begin: Begin) -> None:
    strict = begin(QueueSpec(name="q", selection=Priority()))
    assert turn_of_the_low_one(strict, 100) is None, "there is always something urgent: the low one starves"

    world = begin(PRIORITY("q"))
    assert turn_of_the_low_one(world, 100) == 300, "five points are worth five minutes, no more"


def test_priority_still_means_something(begin: Begin) -> None:
    world = begin(PRIORITY("q"))
    world.send(*[Draft("job", priority=priority) for priority in (1, 9, 5)])
    assert [lease.job.priority for lease in world.claim(3)] == [9, 5, 1]
    urgent = [world.send(Draft("job", priority=9))[0] for _ in range(3)]
    assert [lease.job.id for lease in world.claim(3)] == urgent, "where everything is urgent the oldest is first"


def served(world: World, rounds: int) -> Counter[str | None]:
    tenants: Counter[str | None] = Counter()
    for _ in range(rounds):
        leases = world.claim()
        tenants.update(lease.job.tenant for lease in leases)
        world.done(leases)
    return tenants


def test_fair_a_loud_tenant_and_idle_ones(begin: Begin) -> None:
    loud, quiet = Draft("job", tenant="loud"), Draft("job", tenant="quiet")
    plain = begin(QueueSpec(name="q"))
    plain.send(*[loud] * 200, *[quiet] * 5)
    assert served(plain, 50)["quiet"] == 0, "the quiet tenant waits for two hundred jobs that are not its own"

    reserved = begin(QueueSpec(name="q", eligibility=AtMost(32, per="tenant")))
    reserved.send(*[loud] * 200)
    assert len(reserved.claim(64)) == 32, "half of the workers are kept for a tenant that has nothing to do"

    world = begin(FAIR("q"))
    world.send(*[loud] * 200, *[quiet] * 5)
    assert served(world, 10) == {"loud": 5, "quiet": 5}, "turn by turn"
    assert served(world, 30) == {"loud": 30}, "and an idle tenant gives its turns away"
    world.send(*[quiet] * 100)
    assert served(world, 20) == {"loud": 10, "quiet": 10}, "it has saved nothing up, and owes nothing"
    assert len(world.claim(64)) == 64, "all workers are busy"
    assert Counter(lease.job.tenant for lease in world.claim(1_000)) == {"loud": 32, "quiet": 32}


def test_fair_corrected_weights_apply_to_jobs_that_wait(begin: Begin) -> None:
    world = begin(replace(FAIR("q"), share=Fair(weights={"loud": 9})))
    world.send(*[Draft("job", tenant=tenant) for tenant in ("loud", "quiet") * 60])
    assert served(world, 20) == {"loud": 18, "quiet": 2}, "as the weights say: nine in ten"
    world.store.put_spec(FAIR("q"))
    after = served(world, 20)
    assert abs(after["quiet"] - 10) <= 1, "the next claim goes by the new ones, for jobs that are there already"


def test_coalescing_repeated_work_a_lost_event_and_a_hot_key(begin: Begin) -> None:
    changes = [Draft("reindex", version, subject="page") for version in range(1, 101)]
    other = Draft("reindex", "other", subject="other")
    plain = begin(QueueSpec(name="q"))
    plain.send(*changes, other)
    assert plain.claim(100)[-1].job.payload == 100, "a hundred runs where one would do, and the rest wait behind them"

    pending: dict[str, int] = {}
    for change in changes:
        pending.setdefault("page", int(change.payload))
    assert pending == {"page": 1}, "first one wins: the index stays at version 1 for ever"

    world = begin(COALESCING("q"))
    assert len(set(world.send(*changes))) == 1
    world.send(other)
    running, stranger = world.claim(10)
    assert payloads([running, stranger]) == [100, "other"], "one run, the newest payload, and no job waits behind it"
    world.done([stranger])

    dirty, again = world.send(Draft("reindex", 101, subject="page"), Draft("reindex", 102, subject="page"))
    assert running.job.id != dirty == again, "dirty again while it runs: one more run, however often"
    assert world.claim(10) == [], "one runs, one waits"
    world.settle([running], Failed(BOOM), lambda: 0.9)
    runs = []
    for _ in range(3):
        world.clock.advance(HOUR)
        for lease in world.claim(10):
            runs.append(lease.job.payload)
            world.done([lease])
    assert runs == [100, 102], "also after a failure the newest is the last to run"


def test_coalescing_a_wrong_key_is_reported_to_the_producer(begin: Begin) -> None:
    world = begin(COALESCING("q"))
    too_coarse = [Draft("reindex", page, queue="q", subject="the whole site") for page in ("home", "about")]
    receipts = world.store.enqueue(too_coarse)
    assert [receipt.merged for receipt in receipts] == [False, True], "`home` is gone, and its producer has that answer"
    [about] = world.claim(10)
    assert about.job.payload == "about"
    world.done([about])
    world.send(Draft("reindex", "home", subject="home"), Draft("reindex", "about", subject="about"))
    assert payloads(world.claim(10)) == ["home", "about"], "a key per page loses no page"


def edited(world: World, edits: int) -> list[object]:
    """An edit a second, and a worker that claims at once. What was run until no edit came for a minute."""
    runs: list[object] = []
    for second in range(edits + 60):
        if second < edits:
            world.send(Draft("save", second, subject="page"))
        leases = world.claim(10)
        runs += payloads(leases)
        world.done(leases)
        world.clock.advance(SECOND)
    return runs


def test_coalescing_waits_for_quiet_and_not_for_ever(begin: Begin) -> None:
    assert edited(begin(COALESCING("q")), 30) == list(range(30)), "latest wins alone: an idle worker runs every edit"

    debounced = begin(replace(COALESCING("q"), merge=LatestWins(quiet=seconds(5))))
    assert edited(debounced, 30) == [29], "one run, five seconds after the last edit"

    bounded = begin(replace(COALESCING("q"), merge=LatestWins(quiet=seconds(5), at_most=seconds(10))))
    assert edited(bounded, 30) == [10, 21, 29], "edits without a pause are saved all the same"
