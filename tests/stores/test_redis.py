"""What only the Redis store has: a server held to what its operator promises, keys that go, ranks beyond 2^53."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import pytest

from forebay import Draft, QueueSpec, State, open_store
from forebay.core.errors import Invalid, KeyConflict, StoreFailed
from forebay.core.instant import hours, minutes
from forebay.core.limits import MAX_PRIORITY
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Retry, Verdict
from forebay.core.policy import (
    Aging,
    AtMost,
    Bounded,
    Fair,
    InOrder,
    KeepFor,
    LatestWins,
    Rate,
    Routing,
    Shed,
    Until,
    While,
)
from forebay.store.open import open_ledger
from forebay.store.protocol import Inspecting, Query, Want
from forebay.store.redis.connect import Address
from forebay.store.redis.health import Health, flaws
from forebay.store.redis.scripts import names, script
from forebay.store.redis.store import RedisStore
from forebay.testing.clock import ManualClock
from forebay_proof.servers.redis import RedisServer
from tests.stores.keys import left_behind

FIT = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
}


def health(version: str = "7.2.4", **settings: str) -> Health:
    return Health(
        "redis", version, FIT | {name.replace("_", "-"): text for name, text in settings.items()}, True, 1, 10, 1, 0
    )


@pytest.mark.parametrize(
    ("health", "durability", "word"),
    [
        (health("6.2.14"), "always", "version"),
        (health(maxmemory_policy="allkeys-lru"), "always", "maxmemory-policy"),
        (health(maxmemory_policy="volatile-ttl"), "none", "maxmemory-policy"),
        (health(appendonly="no"), "always", "appendonly"),
        (health(appendonly="no"), "everysec", "appendonly"),
        (health(appendfsync="everysec"), "always", "appendfsync is everysec"),
        (health(appendfsync="no"), "everysec", "appendfsync is no"),
        (health(no_appendfsync_on_rewrite="yes"), "always", "rewrite"),
        (Health("redis", "7.0.0", {}, True, 1, 1, 1, 0), "everysec", "cannot be read"),
    ],
)
def test_a_server_that_cannot_keep_the_promise_is_known_by_its_settings(
    health: Health, durability: str, word: str
) -> None:
    ((fact, way_out),) = flaws(health, durability)
    assert word in fact
    assert way_out


@pytest.mark.parametrize(
    ("health", "durability"),
    [
        (health(), "always"),
        (health(appendfsync="everysec"), "everysec"),
        (health(appendonly="no", appendfsync="no"), "none"),
        (Health("valkey", "9.1.2", {}, True, 1, 1, 1, 0), "trusted"),
    ],
)
def test_a_server_that_keeps_it_is_let_in(health: Health, durability: str) -> None:
    assert flaws(health, durability) == []


@pytest.fixture(scope="module")
def relaxed() -> Iterator[RedisServer]:
    with RedisServer(durable=True, private=True, settings={"appendfsync": "everysec"}) as server:
        yield server


def test_less_than_durable_is_refused_unless_the_operator_says_so_and_then_it_shows(relaxed: RedisServer) -> None:
    with pytest.raises(Invalid, match=r"appendfsync is everysec.*\?durability=everysec"):
        open_store(relaxed.url())
    store = open_store(relaxed.url(durability="everysec"))
    assert [receipt.durable for receipt in store.enqueue([Draft("k")])] == [False]
    assert not store.capabilities.durable
    assert isinstance(store, Inspecting)
    vitals = store.vitals()
    assert (vitals.settings["durability"], vitals.settings["appendfsync"]) == ("everysec", "everysec")
    assert vitals.writable
    store.close()


def test_a_server_that_hides_its_settings_must_be_declared_safe(relaxed: RedisServer) -> None:
    with relaxed.client() as client:
        rights = {"categories": ["+@all"], "commands": ["-config"], "keys": ["*"], "channels": ["*"]}
        client.acl_setuser("app", enabled=True, nopass=True, **rights)
    place = f"redis://app:any@{relaxed.host}:{relaxed.port}/1"
    with pytest.raises(Invalid, match="cannot be read"):
        open_store(place)
    store = open_store(f"{place}?durability=trusted")
    assert store.enqueue([Draft("k")])[0].durable
    store.close()


@pytest.mark.parametrize("options", ["durability=maybe", "prefix=a%20b", "delivery=pigeons"])
def test_an_option_that_is_none_is_refused(options: str) -> None:
    with pytest.raises(Invalid):
        open_store(f"redis://localhost/0?{options}")


def test_no_error_shows_the_password() -> None:
    with pytest.raises(StoreFailed) as error:
        open_store("redis://user:s3cr3t@127.0.0.1:1/0")
    assert "s3cr3t" not in str(error.value)
    address = Address.of("redis://user:s3%20cr3t@host/0?prefix=a&socket_timeout=3")
    assert (address.name, address.prefix) == ("redis://user@host/0", "{a}:")
    assert address.hidden("no s3 cr3t here") == "no *** here"


def test_stores_with_different_prefixes_do_not_meet(redis: RedisServer, redis_url: str) -> None:
    one, other = open_store(redis.url(prefix="one")), open_store(redis.url(prefix="other"))
    assert one.enqueue([Draft("k")])[0].id == other.enqueue([Draft("k")])[0].id == 1
    assert len(one.claim([Want("default", 5)], "w", minutes(1))) == 1
    one.close()
    other.close()


def test_every_script_is_one_that_the_server_takes(redis: RedisServer) -> None:
    with redis.client() as client:
        for name in names():
            assert client.script_load(script(name).text.decode()) == script(name).digest.decode()


def test_the_legend_has_every_key_of_the_scripts() -> None:
    texts = {name: script(name).text.decode() for name in names()}
    used = {key for text in texts.values() for key in re.findall(r"P \.\. '([a-z_0-9]+)", text)}
    legend = "\n".join(re.findall(r"^--   .*", texts["claim"], re.MULTILINE))
    described = set(re.findall(r"(?:--   |; +|, )([a-z_0-9]+)(?:\b|:)", legend))
    assert len(used) > 50
    assert used - described == {"gone"}, "the two halves of the kept settles: gone0 and gone1"


def test_ranks_beyond_what_a_number_of_lua_holds_are_exact(redis_url: str) -> None:
    clock = ManualClock()
    store = RedisStore(redis_url, clock=clock)
    store.put_spec(QueueSpec(name="q", selection=Aging(timedelta(hours=1))))
    ids = []
    for priority in (MAX_PRIORITY, MAX_PRIORITY - 1, 0, -MAX_PRIORITY):
        drafts = [Draft("k", queue="q", priority=priority, delay=delay) for delay in (3, 2, 1)]
        ids += [receipt.id for receipt in reversed(store.enqueue(drafts))]
    clock.advance(5)
    leases = store.claim([Want("q", 100)], "w", minutes(1))
    assert [lease.job.id for lease in leases] == ids, "a microsecond counts, at any priority"
    store.close()


def test_a_store_outlasts_any_number_of_lost_connections(redis: RedisServer, redis_url: str) -> None:
    """The driver's pool makes a hundred connections in its life, and no more."""
    store = open_store(redis_url)
    with redis.client() as client:
        for number in range(130):
            client.client_kill_filter(_type="normal", skipme=True)
            assert store.enqueue([Draft("k", number)])[0].id == number + 1
    store.close()


def test_another_process_follows_a_new_spec_at_once(redis_url: str) -> None:
    one, other = open_store(redis_url), open_store(redis_url)
    other.enqueue([Draft("k", queue="q", tenant="t")])
    one.put_spec(QueueSpec(name="q", retention=KeepFor(hours(1)), capacity=Bounded(3), routing=Routing(max_attempts=7)))
    other.enqueue([Draft("k", queue="q")])
    jobs = other.browse(Query(queue="q"), 0, 10).jobs
    assert [job.max_attempts for job in jobs] == [25, 7]
    one.put_spec(QueueSpec(name="q", eligibility=AtMost(1)))
    other.enqueue([Draft("k", queue="q"), Draft("k", queue="q")])
    assert len(other.claim([Want("q", 9)], "w", minutes(1))) == 1, "the cap holds for jobs that came before it, too"
    one.close()
    other.close()


def commands_of(redis: RedisServer, act: Callable[[], object], command: str = "") -> int:
    """How many commands the server ran for it, also inside of scripts; or how many of this name."""

    def count() -> int:
        stats = client.info("commandstats")
        return int(sum(of["calls"] for name, of in stats.items() if name.startswith(f"cmdstat_{command}")))

    with redis.client() as client:
        before = count()
        act()
        return count() - before


def capped(limit: int, *, share: Fair | None = None) -> QueueSpec:
    return QueueSpec(name="q", eligibility=AtMost(limit, per="tenant"), share=share)


def test_a_spec_costs_no_more_with_many_lanes_and_many_running_jobs(redis: RedisServer, redis_url: str) -> None:
    store = open_store(redis_url)
    store.put_spec(capped(1))
    for first in range(0, 3_000, 1_000):
        store.enqueue([Draft("k", queue="q", tenant=f"t{first + number}") for number in range(1_000)])
    assert len(store.claim([Want("q", 1_000)], "w", minutes(1))) == 1_000
    for spec in (capped(2), capped(2, share=Fair()), capped(3), QueueSpec(name="q")):
        assert commands_of(redis, partial(store.put_spec, spec)) < 3_000
    store.close()


def test_a_batch_of_unlike_jobs_is_written_at_once(redis: RedisServer, redis_url: str) -> None:
    store = open_store(redis_url)
    drafts = [Draft("k", max_attempts=1 + number % 9, priority=number % 3) for number in range(100)]
    assert commands_of(redis, lambda: store.enqueue(drafts)) < 50
    assert len(store.claim([Want("default", 1_000)], "w", minutes(1))) == 100
    store.close()


def test_lanes_that_another_spec_opens_are_claimed_however_many_they_are(redis_url: str) -> None:
    lanes, store = 1_500, open_store(redis_url)
    store.put_spec(capped(1))
    for _ in range(2):
        for first in range(0, lanes, 500):
            store.enqueue([Draft("k", queue="q", tenant=f"t{first + number}") for number in range(500)])
    claimed = [len(store.claim([Want("q", 1_000)], "w", minutes(5))) for _ in range(4)]
    assert claimed == [1_000, 500, 0, 0], "each tenant has one that runs"
    store.put_spec(capped(2))
    claimed = [len(store.claim([Want("q", 1_000)], "w", minutes(5))) for _ in range(10)]
    assert sum(claimed) == lanes, claimed
    store.close()


def test_a_spec_that_sheds_marks_every_job_some_at_a_time(redis: RedisServer, redis_url: str) -> None:
    store = open_store(redis_url)
    for _ in range(5):
        store.enqueue([Draft("k", queue="q") for _ in range(1_000)])
    spec = QueueSpec(name="q", capacity=Bounded(5_000, Shed("oldest")))
    assert commands_of(redis, lambda: store.put_spec(spec), "evalsha") > 2, "one call would be too long"
    with redis.client() as client:
        assert client.zcard("{forebay}:old:q") == 5_000
    store.enqueue([Draft("k", queue="q")])
    (shed,) = store.browse(Query(queue="q", state=State.DEAD), 0, 10).jobs
    assert shed.id == 1
    store.close()


def test_a_release_of_many_is_made_in_steps(redis: RedisServer, redis_url: str) -> None:
    store = open_store(redis_url)
    store.put_spec(QueueSpec(name="q", eligibility=Until("go")))
    store.enqueue([Draft("k", queue="q", tenant=f"t{number % 7}") for number in range(500)])
    released: list[int] = []
    assert commands_of(redis, lambda: released.append(store.release("go", 350)), "evalsha") >= 4
    assert (released, store.release("go", 350)) == ([350], 150)
    assert len(store.claim([Want("q", 1_000)], "w", minutes(1))) == 500
    store.close()


def test_drafts_are_judged_in_their_order_though_some_are_judged_by_the_client(redis_url: str) -> None:
    store = open_store(redis_url)
    store.put_spec(QueueSpec(name="q", eligibility=AtMost(1)))
    store.enqueue([Draft("k", 1, queue="q", key="x")])
    conflicts, too_costly = Draft("k", 2, queue="q", key="x"), Draft("k", queue="q", cost=2)
    with pytest.raises(KeyConflict):
        store.enqueue([conflicts, too_costly])
    for batch in ([too_costly, conflicts], [Draft("k", 3, queue="q", key="y"), too_costly]):
        with pytest.raises(Invalid, match="cost"):
            store.enqueue(batch)
    assert store.backlog(["q"])[0].depth == 1
    store.close()


SPECS = [
    QueueSpec(name="plain"),
    QueueSpec(name="fair", share=Fair(), capacity=Bounded(100)),
    QueueSpec(name="capped", eligibility=AtMost(2) & InOrder()),
    QueueSpec(name="paced", eligibility=Rate(5, timedelta(seconds=1))),
    QueueSpec(
        name="laned", eligibility=AtMost(1, per="tenant") & Rate(1, timedelta(seconds=1), per="subject"), share=Fair()
    ),
    QueueSpec(name="merged", merge=LatestWins(quiet=timedelta(seconds=1))),
    QueueSpec(name="unique", unique=While(), retention=KeepFor(hours(1))),
    QueueSpec(name="shedding", capacity=Bounded(5, Shed("oldest"))),
]


@pytest.mark.parametrize("delivery", ["sets", "streams"])
def test_a_drained_store_leaves_no_key_behind(redis: RedisServer, delivery: str) -> None:
    redis.clear()
    clock = ManualClock()
    store = RedisStore(redis.url(delivery=delivery), clock=clock)
    for spec in SPECS:
        store.put_spec(spec)
    for spec in SPECS:
        for number in range(7):
            tenant, subject, key = f"t{number % 2}", f"s{number % 2}", f"{spec.name}-{number}"
            late = clock.now() + 10**10
            draft = Draft("k", queue=spec.name, tenant=tenant, subject=subject, key=key, expires_at=late)
            store.enqueue([draft])
    store.enqueue([Draft("k", queue="bare", delay=1)])
    verdicts: list[Verdict] = [Ack(), Retry(1_000_000, Failure("E")), DeadLetter(Failure("E")), Ack()]
    ran = 0
    for _ in range(200):
        clock.advance(1_000_000)
        leases = store.claim([Want(spec.name, 3) for spec in SPECS] + [Want("bare", 1)], "w", minutes(1))
        store.settle([(lease, verdicts[(ran + place) % 4]) for place, lease in enumerate(leases)])
        ran += len(leases)
    assert store.purge(State.DEAD, clock.now() + 1, 1_000) > 5
    clock.advance(2 * 3_600_000_000)
    store.promote(1_000)
    store.promote(1_000)
    assert [backlog.depth for backlog in store.backlog()] == [0] * len(SPECS)
    with redis.client() as client:
        assert left_behind(client) == {}
    store.close()


def test_turns_of_an_empty_queue_are_forgotten(redis: RedisServer) -> None:
    """Also where each class started a single job, so that the queue's own turn has not moved."""
    redis.clear()
    store = RedisStore(redis.url())
    store.put_spec(QueueSpec(name="fair", share=Fair()))
    store.enqueue([Draft("k", queue="fair", tenant="ada")])
    store.settle([(lease, Ack()) for lease in store.claim([Want("fair", 1)], "w", minutes(1))])
    with redis.client() as client:
        assert left_behind(client) == {}
    store.close()


def test_a_rate_that_the_spec_lost_is_not_waited_for(redis: RedisServer) -> None:
    redis.clear()
    store = RedisStore(redis.url())
    store.put_spec(QueueSpec(name="paced", eligibility=Rate(1, minutes(1))))
    store.enqueue([Draft("k", queue="paced")] * 2)
    leases = store.claim([Want("paced", 2)], "w", minutes(1))
    store.put_spec(QueueSpec(name="paced"))
    leases += store.claim([Want("paced", 2)], "w", minutes(1))
    store.settle([(lease, Ack()) for lease in leases])
    assert (len(leases), store.promote(100).next_due) == (2, None)
    with redis.client() as client:
        assert "opens:paced" not in left_behind(client)
    store.close()


def test_the_end_of_a_cancelled_job_is_published_though_nothing_is_kept_of_it(redis: RedisServer) -> None:
    redis.clear()
    store = RedisStore(redis.url())
    (receipt,) = store.enqueue([Draft("k")])
    (lease,) = store.claim([Want("default", 1)], "w", minutes(1))
    with redis.client() as client, client.pubsub() as ended:
        ended.ssubscribe("{forebay}:ended")
        assert ended.get_message(timeout=30)["type"] == "ssubscribe"
        store.settle([(lease, Cancel())])
        assert int(ended.get_message(timeout=30)["data"]) == receipt.id
    store.close()


def test_the_ledger_is_read_by_its_url(redis_url: str) -> None:
    store = open_store(redis_url)
    store.enqueue([Draft("k"), Draft("k")])
    reader = open_ledger(redis_url)
    (entry,) = reader.ledger(-1, 10)
    assert (entry.offset, entry.record.verb, entry.record.jobs) == (0, "enqueue", 2)
    reader.close()
    store.close()
