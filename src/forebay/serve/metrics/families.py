"""All that a server tells Prometheus, as families: the fleet's counters, the queues' gauges, this process's own.

This file is the list of names; deploy/ and docs/operations.md use no others, and a test holds them to it. Several
servers on one store count the same ledger, each for itself: take the `max` over instances of what has the label
`queue`, and the sum of what is a process's own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from forebay.core.ledger import Change
from forebay.core.limits import AHEAD_MOST, BLOCKED_MOST
from forebay.serve.metrics.follower import Follower
from forebay.serve.metrics.meters import Meters
from forebay.serve.metrics.names import OTHER
from forebay.serve.metrics.tally import RECLAIMED, Tally
from forebay.serve.metrics.watch import Watch
from forebay.store.protocol import Capabilities, Vitals
from forebay.work.meter import Family, Labels, Sample, counter, gauge, histogram

FLEET = {
    Change.ACCEPTED: ("forebay_jobs_accepted_total", "Jobs that came in."),
    Change.CLAIMED: ("forebay_jobs_claimed_total", "Leases that were handed out."),
    Change.ACKED: ("forebay_jobs_acked_total", "Jobs that were done."),
    Change.RETRIED: ("forebay_jobs_retried_total", "Runs that failed and are tried again."),
    Change.DIED: ("forebay_jobs_died_total", "Jobs that failed for good."),
    Change.EXPIRED: ("forebay_jobs_expired_total", "Jobs that nobody claimed in time: dead letters as well."),
    Change.SHED: ("forebay_jobs_shed_total", "Jobs that gave way in a full queue: dead letters as well."),
    Change.RELEASED: ("forebay_jobs_released_total", "Jobs that were handed back uncharged."),
    Change.DISMISSED: ("forebay_jobs_dismissed_total", "Jobs that were ended by request while they ran."),
    Change.CANCELLED: ("forebay_jobs_cancelled_total", "Jobs that were ended by request before they ran."),
    Change.REDRIVEN: ("forebay_jobs_redriven_total", "Dead letters that live again."),
    Change.MERGED: ("forebay_jobs_merged_total", "Drafts that a waiting job took over."),
    Change.PURGED: ("forebay_jobs_purged_total", "Finished jobs that were forgotten."),
    Change.ASKED: ("forebay_jobs_asked_to_stop_total", "Running jobs whose holder is to stop."),
    Change.EXTENDED: ("forebay_lease_renewals_total", "Leases that were made longer by their holder."),
    RECLAIMED: ("forebay_lease_reclaims_total", "Jobs taken back because their holder fell silent."),
}
LENGTHS = {
    "wait": ("forebay_job_wait_seconds", ("queue", "kind"), "From due to claimed, of every claim."),
    "run": ("forebay_job_run_seconds", ("queue", "kind"), "From claimed to the end of the lease."),
    "total": ("forebay_job_total_seconds", ("queue",), "From accepted to the end of the job."),
    "lateness": ("forebay_job_lateness_seconds", ("queue",), "From due to the first claim, of jobs for later."),
}
STATES = ("waiting", "ready", "running", "done", "dead", "cancelled")


def fleet(tally: Tally) -> Iterator[Family]:
    """What the ledger says, whichever process did it."""
    counts = tally.counts()
    for change, (name, told) in FLEET.items():
        # Zeros too: a counter that begins with its first event hides that event from every rate.
        yield counter(name, f"{told} From the ledger.", [(_pair(pair), row[change]) for pair, row in counts.items()])
    told = "Times that an owner made all its leases longer at once, as on Postgres. From the ledger."
    yield counter("forebay_heartbeats_total", told, [((), tally.heartbeats)])
    lengths = tally.lengths()
    for measure, (name, labels, told) in LENGTHS.items():
        seen = [(tuple(zip(labels, values, strict=True)), each) for values, each in lengths[measure] if each.count]
        yield histogram(name, f"{told} From the ledger.", seen)


def following(follower: Follower) -> Iterator[Family]:
    """How far the counting itself is."""
    yield gauge(
        "forebay_ledger_followed",
        "1: the fleet's counters come from the ledger. 0: there is none, or it is off: only this process is counted.",
        [((), float(follower.written))],
    )
    yield counter("forebay_ledger_gap_records_total", "Trimmed before they were counted.", [((), follower.gap)])
    yield gauge("forebay_ledger_behind_records", "Not yet counted.", [((), follower.behind)])
    yield gauge("forebay_ledger_offset", "The next record to be counted.", [((), follower.offset)])


def queues(watch: Watch, label: Callable[[str], str]) -> Iterator[Family]:
    """What lies where, as of the last look. Queues beyond the cap are added up."""
    seen = watch.seen
    if seen is None:
        return
    by_queue = [(label(each.queue), each) for each in seen.backlogs]
    jobs: list[Sample] = [
        ((("queue", queue), ("state", state)), getattr(each, state)) for queue, each in by_queue for state in STATES
    ]
    if seen.totals.queues > len(seen.totals.deepest):
        for state in STATES:
            rest = getattr(seen.totals, state) - sum(getattr(each, state) for each in seen.totals.deepest)
            jobs.append(((("queue", OTHER), ("state", state)), max(0, rest)))
    yield gauge("forebay_queue_jobs", "Jobs by state.", _added(jobs))
    yield gauge("forebay_queues", "Names of queues and logs that exist.", [((), seen.totals.queues)])
    ages: list[Sample] = [((("queue", queue),), each.oldest_age / 1e6) for queue, each in by_queue]
    yield gauge("forebay_queue_oldest_seconds", "How long the oldest ready job has been due.", _most(ages))
    held: list[Sample] = [((("queue", queue),), each.held) for queue, each in by_queue]
    counted = f"Ready jobs behind a closed gate; up to {AHEAD_MOST:,} are counted."
    yield gauge("forebay_queue_held_jobs", counted, _added(held))
    blocked: list[Sample] = [((("queue", queue),), each.blocked) for queue, each in by_queue]
    told = f"Lines with a dead head that nothing may pass; up to {BLOCKED_MOST:,} are looked at."
    yield gauge("forebay_queue_blocked_lines", told, _added(blocked))
    paused = [((("queue", queue),), float(each.paused_until is not None)) for queue, each in by_queue]
    yield gauge("forebay_queue_paused", "1: nobody claims from it.", _most(paused))
    stalled = [((("queue", label(queue)),), seconds) for queue, seconds in seen.stalled.items()]
    yield gauge("forebay_queue_stalled_seconds", "With ready jobs, not paused, and without a claim.", _most(stalled))
    dead = [((("queue", label(queue)),), age / 1e6) for queue, age in watch.dead_age.items()]
    told = "Since the dead letter with the smallest id died; of the queues with most dead letters."
    yield gauge("forebay_dead_oldest_seconds", told, _most(dead))
    unhandled: list[Sample] = [((("queue", label(queue)), ("kind", kind)), 1.0) for queue, kind in watch.unhandled]
    told = "1: workers return the jobs of this kind, because none has a handler for it."
    yield gauge("forebay_kind_unhandled", told, _most(unhandled))
    yield gauge("forebay_look_age_seconds", "How old these gauges are.", [((), seen.age)])
    yield gauge("forebay_look_seconds", "How long the last look took.", [((), seen.took)])


def logs(watch: Watch, label: Callable[[str], str]) -> Iterator[Family]:
    """How far behind the groups of a log are, and what they lost or are about to lose."""
    seen = watch.seen
    rows = [] if seen is None else [(label(log), one) for log, some in watch.standings.items() for one in some]
    if seen is None or not rows:
        return
    named = [((("group", one.group), ("queue", log)), one) for log, one in rows]
    yield gauge("forebay_log_lag_entries", "Not yet committed.", _added((pair, one.lag) for pair, one in named))
    lost = "Trimmed before the group had them."
    yield counter("forebay_log_lost_entries_total", lost, _added((pair, one.lost) for pair, one in named))
    near: dict[Labels, float] = {}
    for pair, one in named:
        if one.loses_at is not None:
            near[pair] = min(near.get(pair, float("inf")), (one.loses_at - seen.now) / 1e6)
    yield gauge("forebay_log_loses_in_seconds", "Until the next entry leaves the window.", list(near.items()))


def server(vitals: Vitals | None, able: Capabilities) -> Iterator[Family]:
    """The facts of a Postgres server; nothing for other stores."""
    if vitals is None or able.name != "postgres":
        return
    yield gauge("forebay_postgres_writable", "0: a standby, or read-only.", [((), float(vitals.writable))])
    held = "Age of the oldest transaction that has been open for more than a minute: dead rows stay while it is."
    yield gauge("forebay_postgres_held_snapshot_seconds", held, [((), vitals.held)])
    rows = [((("table", table),), float(dead)) for table, dead in vitals.dead_rows.items()]
    yield gauge("forebay_postgres_dead_rows", "Not yet cleared away.", rows)
    yield gauge("forebay_postgres_connections", "In use, of all.", [((), vitals.connections)])
    yield gauge("forebay_postgres_connections_most", "As many as there can be.", [((), vitals.connections_most)])
    if vitals.hears is not None:
        told = "1: news of other processes arrive. 0: as behind a pooler, idle waiters look ten times a second."
        yield gauge("forebay_postgres_hears", told, [((), float(vitals.hears))])


def own(meters: Meters, able: Capabilities) -> Iterator[Family]:
    """This process."""
    facts = (("version", _release()), ("store", able.name), ("durable", str(able.durable).lower()))
    yield gauge("forebay_server_info", "1, and what serves here.", [(facts, 1.0)])
    requests = [
        ((("method", method), ("route", route), ("status", status)), float(count))
        for (method, route, status), count in list(meters.requests.items())
    ]
    yield counter("forebay_http_requests_total", "Answered requests.", requests)
    took = [((("route", route),), each.look()) for route, each in list(meters.request_seconds.items())]
    yield histogram("forebay_http_request_seconds", "Until the last byte; a long poll waits on purpose.", took)
    yield gauge("forebay_http_in_flight", "Requests under way.", [((), meters.in_flight)])
    told = "Drafts refused over HTTP because their queue was full."
    yield counter("forebay_capacity_refusals_total", told, _by("queue", meters.refusals))
    told = "Drafts refused over HTTP because their key belongs to another payload."
    yield counter("forebay_key_conflicts_total", told, _by("queue", meters.conflicts))
    yield counter("forebay_rate_limited_total", "Requests refused by a limit on callers.", _by("limit", meters.limited))
    told = "Settlements over HTTP. stale: somebody else had the job by then."
    yield counter("forebay_settles_total", told, _by("answer", meters.settled))
    calls = [((("verb", verb),), each.look()) for verb, each in list(meters.store_seconds.items())]
    yield histogram("forebay_store_seconds", "Calls of the store by this process.", calls)
    told = "Requests that failed because the store did."
    yield counter("forebay_store_errors_total", told, [((), meters.store_errors)])


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


def _added(samples: Iterable[Sample]) -> list[Sample]:
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = found.get(labels, 0.0) + value
    return list(found.items())


def _most(samples: Iterable[Sample]) -> list[Sample]:
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = max(found.get(labels, 0.0), value)
    return list(found.items())
