"""Jobs whose histories contain every change that a ledger records, on any store with a manual clock."""

from forebay.core.instant import micros, minutes, seconds
from forebay.core.job import Draft, State
from forebay.core.lease import Lease
from forebay.core.outcome import ABANDONED, Ack, Cancel, DeadLetter, Failure, Release, Retry
from forebay.core.policy import Bounded, FanOut, KeepFor, LatestWins, Route, Shed
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Query, Store, Want
from forebay.testing.clock import ManualClock

SECOND = 1_000_000
BROKE = Failure("Oops", "it broke")
SILENT = Failure(ABANDONED, "its worker fell silent")


def live(store: Store, clock: ManualClock) -> None:
    """Accepted, merged, claimed, extended, acked, retried, died, released, discarded, cancelled,
    cancel_requested, expired, redriven, purged, shed; jobs taken back from silent holders; queues, kinds, delays,
    copies of a broker."""
    store.put_spec(QueueSpec(name="mail", retention=KeepFor(minutes(5))))
    store.put_spec(QueueSpec(name="draw", merge=LatestWins()))
    kinds = ("send", "send", "render", "send")
    store.enqueue([Draft(kind, n, "mail", tenant=f"t{n % 2}") for n, kind in enumerate(kinds)])
    store.enqueue([Draft("send", n, "mail", delay=5 * SECOND) for n in range(3)])
    store.enqueue([Draft("draw", n, "draw", subject="view") for n in range(2)])
    store.enqueue([Draft("late", None, "draw", expires_at=clock.now() + 2 * SECOND)])
    clock.advance(300_000)
    leases = _claim(store, "mail", 4)
    clock.advance(700_000)
    store.extend(leases, seconds(60))
    store.settle(
        [(leases[0], Ack()), (leases[1], Retry(SECOND, BROKE)), (leases[2], DeadLetter(BROKE)), (leases[3], Release(1))]
    )
    clock.advance(6 * SECOND)
    store.promote(100)
    _silence(store, clock)
    _requests(store, clock)
    _crowd(store)
    clock.advance(micros(minutes(10)))
    store.promote(100)
    store.purge(State.DEAD, clock.now() + 1, 1)


def _silence(store: Store, clock: ManualClock) -> None:
    """Holders that stop sending heartbeats: one job is retried, one becomes a dead letter."""
    leases = _claim(store, "mail", 2)
    clock.advance(40 * SECOND)
    late = {lease.job.id: lease for lease in store.overdue(10)}
    store.settle([(late[leases[0].job.id], Retry(0, SILENT)), (late[leases[1].job.id], DeadLetter(SILENT))])


def _requests(store: Store, clock: ManualClock) -> None:
    """Cancels and redrives by operators."""
    running = _claim(store, "mail", 1)
    waiting = store.enqueue([Draft("send", None, "mail", delay=60 * SECOND)])[0].id
    store.cancel([running[0].job.id, waiting])
    store.settle([(running[0], Cancel())])
    dead = [job.id for job in store.browse(Query(queue="mail", state=State.DEAD), 0, 10).jobs]
    store.redrive(dead[:1])
    clock.advance(SECOND)
    again = _claim(store, "mail", 5)
    store.settle([(lease, Ack()) for lease in again])


def _crowd(store: Store) -> None:
    """A full queue sheds its oldest jobs. A broker adds copies of the last one."""
    store.put_spec(QueueSpec(name="feed", capacity=Bounded(2, Shed())))
    store.put_spec(QueueSpec(name="news", fan_out=FanOut((Route("**", "feed"), Route("**", "mail")))))
    for number in range(3):
        store.enqueue([Draft("item", number, "feed")])
    store.enqueue([Draft("item", 3, "news")])
    store.settle([(lease, Ack()) for lease in _claim(store, "feed", 1)])


def _claim(store: Store, queue: str, count: int) -> list[Lease]:
    return store.claim([Want(queue, count)], "worker", seconds(30))
