"""The metric families of a server: fleet counters, queue gauges, and those of this process.

This file is the list of names; a test checks that deploy/ and docs/guides/monitoring.md use no others. Several servers
on one store count the same ledger, each for itself: aggregate metrics with the label `queue` by `max` over instances,
and those of a process by `sum`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from forebay.core.ledger import Change
from forebay.core.limits import MAX_AHEAD, MAX_BLOCKED
from forebay.serve.metrics.follower import LedgerFollower
from forebay.serve.metrics.meters import Meters
from forebay.serve.metrics.poller import StorePoller
from forebay.serve.metrics.tally import OTHER, RECLAIMED, EventTally
from forebay.store.protocol import Capabilities, Vitals
from forebay.work.metrics import Family, Labels, Sample, counter, gauge, histogram

FLEET = {
    Change.ACCEPTED: ("forebay_jobs_accepted_total", "Jobs accepted."),
    Change.CLAIMED: ("forebay_jobs_claimed_total", "Leases granted."),
    Change.ACKED: ("forebay_jobs_acked_total", "Jobs completed."),
    Change.RETRIED: ("forebay_jobs_retried_total", "Failed runs that are retried."),
    Change.DIED: ("forebay_jobs_died_total", "Jobs that failed for good."),
    Change.EXPIRED: ("forebay_jobs_expired_total", "Jobs not claimed in time; they are dead letters."),
    Change.SHED: ("forebay_jobs_shed_total", "Jobs shed by a full queue; they are dead letters."),
    Change.RELEASED: ("forebay_jobs_released_total", "Jobs released without using an attempt."),
    Change.DISCARDED: ("forebay_jobs_discarded_total", "Jobs cancelled while they ran."),
    Change.CANCELLED: ("forebay_jobs_cancelled_total", "Jobs cancelled before they ran."),
    Change.REDRIVEN: ("forebay_jobs_redriven_total", "Dead letters redriven."),
    Change.MERGED: ("forebay_jobs_merged_total", "Drafts merged into a waiting job."),
    Change.PURGED: ("forebay_jobs_purged_total", "Finished jobs purged."),
    Change.CANCEL_REQUESTED: ("forebay_jobs_cancel_requested_total", "Running jobs whose cancellation was requested."),
    Change.EXTENDED: ("forebay_lease_renewals_total", "Leases renewed by their holder."),
    RECLAIMED: ("forebay_lease_reclaims_total", "Jobs reclaimed because their lease expired."),
}
DURATIONS = {
    "wait": ("forebay_job_wait_seconds", ("queue", "kind"), "From due to claimed, for every claim."),
    "run": ("forebay_job_run_seconds", ("queue", "kind"), "From claimed to the end of the lease."),
    "total": ("forebay_job_total_seconds", ("queue",), "From accepted to the end of the job."),
    "lateness": ("forebay_job_lateness_seconds", ("queue",), "From due to the first claim, for delayed jobs."),
}
STATES = ("waiting", "ready", "running", "done", "dead", "cancelled")


def fleet(tally: EventTally) -> Iterator[Family]:
    """Counts from the ledger, whichever process made the change."""
    counts = tally.counts()
    for change, (name, text) in FLEET.items():
        # Zeros too: a counter that starts with its first event hides that event from every rate.
        yield counter(name, f"{text} From the ledger.", [(_pair(pair), row[change]) for pair, row in counts.items()])
    text = "Renewals of all leases of an owner at once, as on Postgres. From the ledger."
    yield counter("forebay_heartbeats_total", text, [((), tally.heartbeats)])
    durations = tally.durations()
    for measure, (name, labels, text) in DURATIONS.items():
        known = [(tuple(zip(labels, values, strict=True)), each) for values, each in durations[measure] if each.count]
        yield histogram(name, f"{text} From the ledger.", known)


def ledger_position(followers: Collection[LedgerFollower]) -> Iterator[Family]:
    """How far the ledger has been counted, or that of each cell."""

    def series(value: Callable[[LedgerFollower], float]) -> list[Sample]:
        return [((("cell", each.cell),) if each.cell else (), value(each)) for each in followers]

    yield gauge(
        "forebay_ledger_followed",
        "1: the fleet counters come from the ledger. 0: the ledger is off, and only this process is counted.",
        series(lambda each: float(each.written)),
    )
    gaps = series(lambda each: each.gap)
    yield counter("forebay_ledger_gap_records_total", "Records trimmed before they were counted.", gaps)
    yield gauge("forebay_ledger_behind_records", "Records not yet counted.", series(lambda each: each.behind))
    yield gauge("forebay_ledger_offset", "The next record to be counted.", series(lambda each: each.offset))


def queues(poller: StorePoller, label: Callable[[str], str]) -> Iterator[Family]:
    """The queues as of the last poll. Queues beyond the label limit are added up."""
    snapshot = poller.snapshot
    if snapshot is None:
        return
    by_queue = [(label(each.queue), each) for each in snapshot.backlogs]
    jobs: list[Sample] = [
        ((("queue", queue), ("state", state)), getattr(each, state)) for queue, each in by_queue for state in STATES
    ]
    if snapshot.totals.queues > len(snapshot.totals.deepest):
        for state in STATES:
            rest = getattr(snapshot.totals, state) - sum(getattr(each, state) for each in snapshot.totals.deepest)
            jobs.append(((("queue", OTHER), ("state", state)), max(0, rest)))
    yield gauge("forebay_queue_jobs", "Jobs by state.", _sum_by_labels(jobs))
    yield gauge("forebay_queues", "Queues and logs.", [((), snapshot.totals.queues)])
    ages: list[Sample] = [((("queue", queue),), each.oldest_age / 1e6) for queue, each in by_queue]
    yield gauge("forebay_queue_oldest_seconds", "How long the oldest ready job has been due.", _max_by_labels(ages))
    held: list[Sample] = [((("queue", queue),), each.held) for queue, each in by_queue]
    counted = f"Ready jobs behind a closed gate; up to {MAX_AHEAD:,} are counted."
    yield gauge("forebay_queue_held_jobs", counted, _sum_by_labels(held))
    blocked: list[Sample] = [((("queue", queue),), each.blocked) for queue, each in by_queue]
    text = f"Ordered lines that a dead job at their head blocks; up to {MAX_BLOCKED:,} are counted."
    yield gauge("forebay_queue_blocked_lines", text, _sum_by_labels(blocked))
    paused = [((("queue", queue),), float(each.paused_until is not None)) for queue, each in by_queue]
    yield gauge("forebay_queue_paused", "1: the queue is paused.", _max_by_labels(paused))
    stalled = [((("queue", label(queue)),), seconds) for queue, seconds in snapshot.stalled.items()]
    text = "Time without a claim while jobs are ready and the queue is not paused."
    yield gauge("forebay_queue_stalled_seconds", text, _max_by_labels(stalled))
    dead = [((("queue", label(queue)),), age / 1e6) for queue, age in poller.dead_age.items()]
    text = "Since the dead letter with the smallest id died, for the queues with the most dead letters."
    yield gauge("forebay_dead_oldest_seconds", text, _max_by_labels(dead))
    unhandled: list[Sample] = [((("queue", label(queue)), ("kind", kind)), 1.0) for queue, kind in poller.unhandled]
    text = "1: workers release the jobs of this kind, because none has a handler for it."
    yield gauge("forebay_kind_unhandled", text, _max_by_labels(unhandled))
    yield gauge("forebay_poll_age_seconds", "Age of the queue gauges.", [((), snapshot.age)])
    yield gauge("forebay_poll_duration_seconds", "Duration of the last poll of the store.", [((), snapshot.took)])


def logs(poller: StorePoller, label: Callable[[str], str]) -> Iterator[Family]:
    """How far behind the groups of each log are, and what they have lost or will lose next."""
    snapshot = poller.snapshot
    rows = [] if snapshot is None else [(label(log), one) for log, some in poller.standings.items() for one in some]
    if snapshot is None or not rows:
        return
    named = [((("group", one.group), ("queue", log)), one) for log, one in rows]
    lag = _sum_by_labels((pair, one.lag) for pair, one in named)
    yield gauge("forebay_log_lag_entries", "Entries not yet committed.", lag)
    lost = _sum_by_labels((pair, one.lost) for pair, one in named)
    yield counter("forebay_log_lost_entries_total", "Entries trimmed before the group committed them.", lost)
    near: dict[Labels, float] = {}
    for pair, one in named:
        if one.loses_at is not None:
            near[pair] = min(near.get(pair, float("inf")), (one.loses_at - snapshot.now) / 1e6)
    yield gauge("forebay_log_loses_in_seconds", "Until the next entry leaves the window.", list(near.items()))


def cells(poller: StorePoller) -> Iterator[Family]:
    """The cells of the store; nothing for a store that has none."""
    if not poller.cells:
        return
    up = [((("cell", name),), float(totals is not None)) for name, totals in poller.cells.items()]
    yield gauge("forebay_cell_up", "0: the cell is down or too slow, and left out.", up)
    jobs = [
        ((("cell", name), ("state", state)), float(getattr(totals, state)))
        for name, totals in poller.cells.items()
        if totals is not None
        for state in STATES
    ]
    yield gauge("forebay_cell_jobs", "Jobs by cell and state.", jobs)


def server(vitals: Vitals | None, able: Capabilities) -> Iterator[Family]:
    """The state of a Postgres server; nothing for other stores."""
    if vitals is None or able.name != "postgres":
        return
    yield gauge("forebay_postgres_writable", "0: a standby, or read-only.", [((), float(vitals.writable))])
    held = "Age of the oldest transaction open for more than a minute: it keeps dead rows from being vacuumed."
    yield gauge("forebay_postgres_held_snapshot_seconds", held, [((), vitals.held)])
    rows = [((("table", table),), float(dead)) for table, dead in vitals.dead_rows.items()]
    yield gauge("forebay_postgres_dead_rows", "Rows not yet vacuumed.", rows)
    yield gauge("forebay_postgres_connections", "Connections in use.", [((), vitals.connections)])
    yield gauge("forebay_postgres_connections_max", "The server's connection limit.", [((), vitals.max_connections)])
    behind = [((("standby", name),), float(count)) for name, count in vitals.standbys.items()]
    yield gauge("forebay_postgres_standby_lag_bytes", "Bytes of the log that a standby has yet to replay.", behind)
    kept = [((("slot", name),), float(count)) for name, count in vitals.slots.items()]
    yield gauge(
        "forebay_postgres_idle_slot_bytes", "Bytes of the log kept for a replication slot that is not read.", kept
    )
    if vitals.listening is not None:
        text = "1: notifications arrive. 0: they do not, as behind a pooler; idle waiters poll ten times a second."
        yield gauge("forebay_postgres_listening", text, [((), float(vitals.listening))])


def own(meters: Meters, able: Capabilities) -> Iterator[Family]:
    """This process."""
    facts = (("version", _release()), ("store", able.name), ("durable", str(able.durable).lower()))
    yield gauge("forebay_server_info", "Always 1; the labels describe the server.", [(facts, 1.0)])
    requests = [
        ((("method", method), ("route", route), ("status", status)), float(count))
        for (method, route, status), count in list(meters.requests.items())
    ]
    yield counter("forebay_http_requests_total", "Requests answered.", requests)
    took = [((("route", route),), each.snapshot()) for route, each in list(meters.request_seconds.items())]
    text = "Until the last byte, including the wait of a long poll."
    yield histogram("forebay_http_request_duration_seconds", text, took)
    yield gauge("forebay_http_requests_in_flight", "Requests in flight.", [((), meters.in_flight)])
    text = "Drafts refused over HTTP because their queue was full."
    yield counter("forebay_capacity_refusals_total", text, _by("queue", meters.refusals))
    text = "Drafts refused over HTTP because their key belongs to another payload."
    yield counter("forebay_key_conflicts_total", text, _by("queue", meters.conflicts))
    yield counter("forebay_rate_limited_total", "Requests refused by a limit per caller.", _by("limit", meters.limited))
    text = "Settlements over HTTP. stale: the lease had expired and the job was claimed again."
    yield counter("forebay_settles_total", text, _by("answer", meters.settled))
    calls = [((("verb", verb),), each.snapshot()) for verb, each in list(meters.store_seconds.items())]
    yield histogram("forebay_store_call_duration_seconds", "Store calls of this process.", calls)
    text = "Requests that failed because the store did."
    yield counter("forebay_store_errors_total", text, [((), meters.store_errors)])


@cache
def _release() -> str:
    try:
        return version("forebay")
    except PackageNotFoundError:
        return "unknown"


def _pair(pair: tuple[str, str]) -> Labels:
    return (("queue", pair[0]), ("kind", pair[1]))


def _by(label: str, counts: Mapping[str, int]) -> list[Sample]:
    return [(((label, value),), float(count)) for value, count in list(counts.items())]


def _sum_by_labels(samples: Iterable[Sample]) -> list[Sample]:
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = found.get(labels, 0.0) + value
    return list(found.items())


def _max_by_labels(samples: Iterable[Sample]) -> list[Sample]:
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = max(found.get(labels, 0.0), value)
    return list(found.items())
