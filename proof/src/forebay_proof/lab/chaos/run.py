"""A plan, carried out: warm-up, faults at their moments, the end of the load, drain, proof, verdict.

PASS   all that the plan demands was made, and every promise held
FAIL   a promise was broken: something lost or doubled, a life that the ledger cannot have, a job stuck, a recovery that
       took too long, an exit code, or what a fault itself saw (`Scene.report_failure`)
INVALID  nothing wrong was found, and it proves nothing: fewer faults bit or fewer jobs were accepted than the plan
       demands, or this machine cannot make the fault

The same seed makes the same jobs, moments and choices; what a kernel schedules when is not in our hands. Below the
directory: chaos.ndjson (every strike), receipts, effects, starts, logs.
"""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final, Literal

import msgspec
from msgspec import Struct

from forebay.core.errors import ForebayError
from forebay.core.ledger import LedgerEntry
from forebay.core.limits import MAX_BATCH
from forebay.store.protocol import Query, Store
from forebay_proof.checkers import ledger
from forebay_proof.histogram import percentile
from forebay_proof.lab.audit import EXITS, AuditAnswer, AuditFailed, AuditResult, audit, audit_quickly
from forebay_proof.lab.chaos import deploys
from forebay_proof.lab.chaos.faults import ChaosFault, fault_of
from forebay_proof.lab.chaos.parts import build
from forebay_proof.lab.chaos.plan import ChaosPlan, ChaosScale, Kept
from forebay_proof.lab.chaos.recovery import recovered, unfinished, unstarted
from forebay_proof.lab.chaos.scene import Bite, Impossible, Scene, Strike, Stuck, now, pause
from forebay_proof.load.app import QUEUE
from forebay_proof.load.handler_log import HandlerRecord, read_records

LOG: Final = "chaos.ndjson"
_WARM_EFFECTS: Final = 20
_NAMED: Final = 5
_TICK: Final = 1_000_000


class ChaosResult(Struct, kw_only=True):
    """What became of one run of a plan; a row of the table."""

    plan: str
    title: str
    store: str
    scale: ChaosScale
    seed: int
    answer: AuditAnswer
    reasons: list[str]
    planned: int
    made: int
    bit: int
    accepted: int = 0
    redelivered: int = 0
    dead: int = 0
    recovery_p50: float | None = None
    recovery_p99: float | None = None
    interrupted: int = 0
    restart_p50: float | None = None
    restart_p99: float | None = None
    max_unstarted: int = 0
    seconds: float = 0.0
    verdict: AuditResult | None = None

    @property
    def exit_code(self) -> int:
        return EXITS[self.answer]


class Runner:
    def __init__(
        self,
        plan: ChaosPlan,
        kept: Kept,
        where: str,
        directory: Path,
        *,
        scale: ChaosScale = "quick",
        limit: float | None = None,
        proof: Literal["quick", "spark"] = "quick",
        say: Callable[[str], None] = print,
    ) -> None:
        """`where` is the kind of store or the URL of one; `limit` seconds instead of the plan's counts."""
        self._plan = plan
        self._where = where
        self._limit = limit
        self._proof = proof
        self._parts = ExitStack()
        self._rng = Random(plan.seed)
        self._faults = [(fault_of(timed), timed) for timed in plan.faults]
        self._began = 0.0
        self._restarts: list[float] = []
        self._unstarted = 0
        self.scene = Scene(plan, kept, scale, directory, self._say(say), self._parts)

    def run(self) -> ChaosResult:
        began = time.monotonic()
        self.scene.directory.mkdir(parents=True, exist_ok=True)
        timeline = self._timeline()
        missing: list[str] = []
        verdict: AuditResult | None = None
        with self._parts:
            try:
                verdict = self._carry_out(timeline)
            except Impossible as error:
                missing.append(f"it cannot be made here: {error}")
            except AuditFailed as error:
                missing.append(f"the audit could not be held: {error}")
            except (Stuck, ForebayError) as error:
                self.scene.report_failure(f"{type(error).__name__}: {error}")
        outcome = self._outcome(len(timeline), verdict, missing)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _timeline(self) -> list[tuple[float, int, ChaosFault]]:
        """Moments in order, each with its fault."""
        timeline = []
        for number, (fault, timed) in enumerate(self._faults):
            moments = timed.moments(self.scene.scale, self._rng, self._limit)
            timeline += [(moment, number, fault) for moment in moments]
        return sorted(timeline, key=lambda entry: entry[:2])

    def _carry_out(self, timeline: list[tuple[float, int, ChaosFault]]) -> AuditResult | None:
        scene = self.scene
        loaded = self._plan.load.rate > 0
        if loaded:
            settings = {name: value for fault, _ in self._faults for name, value in fault.settings.items()}
            build(scene, self._where, self._parts, settings)
        for fault, _ in self._faults:
            if scene.kept not in fault.stores:
                raise Impossible(f"{type(fault).__name__} is for {', '.join(fault.stores)}")
            fault.prepare(scene)
        if loaded:
            self._warm_up()
        self._began = time.monotonic()
        for moment, _, fault in timeline:
            pause(max(0.0, self._began + moment - time.monotonic()))
            self._strike(fault, len(timeline))
            if loaded:
                self._go_on()
        for fault, _ in self._faults:
            fault.finish(scene)
        return self._prove() if loaded else None

    def _warm_up(self) -> None:
        scene = self.scene
        scene.fleet.start()
        scene.load.start()
        scene.until(lambda: len(read_records(scene.effects)) >= _WARM_EFFECTS, "the first effects")
        scene.say("warm: faults begin")

    def _strike(self, fault: ChaosFault, of: int) -> None:
        scene = self.scene
        at = now()
        try:
            bite = fault.strike(scene, self._rng)
        except (Impossible, Stuck, ForebayError):
            raise
        except Exception as error:
            bite = Bite(False, f"could not be made: {type(error).__name__}: {error}")
        number = len(scene.strikes) + 1
        strike = Strike(
            number, type(fault).__name__, bite.at or at, now(), bite.bit, bite.what, bite.pids, recovery=bite.took
        )
        scene.acks += bite.acks
        scene.strikes.append(strike)
        with (scene.directory / LOG).open("ab") as log:
            log.write(msgspec.json.encode(strike) + b"\n")
        scene.say(f"{number}/{of} {'' if bite.bit else '(missed) '}{bite.what}")

    def _go_on(self) -> None:
        """There are effects again: the next fault meets a store that is worked on."""
        over_at, effects = self.scene.strikes[-1].over_at, self.scene.effects
        self.scene.until(
            lambda: any(file.stat().st_mtime_ns > over_at * 1_000 for file in effects.iterdir()),
            "effects after a fault",
            self._plan.proof.recovery,
        )

    def _prove(self) -> AuditResult:
        scene, plan = self.scene, self._plan
        accepted = scene.load.report().accepted
        scene.until(
            lambda: (report := scene.load.report()).accepted > accepted and not (report.open and plan.load.keys),
            "every producer has its answers",
            plan.proof.recovery,
        )
        report = scene.load.stop()
        scene.say(f"{report.accepted:,} jobs accepted, {report.unknown:,} retried; draining")
        queues = [QUEUE]
        scene.until(lambda: not sum(each.depth for each in scene.store.backlog(queues)), "all ended", plan.proof.drain)
        if (code := scene.fleet.stop()) != 0:
            scene.report_failure(f"the fleet left with code {code}")
        starts, effects = (read_records(folder, scene.skewed) for folder in (scene.starts, scene.effects))
        self._restarts = recovered(scene.strikes, starts, effects, scene.steady)
        (scene.directory / LOG).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in scene.strikes))
        entries = _entries(scene.store)
        self._judge_histories(entries)
        self._judge_acks(entries)
        self._judge_restarts(entries, starts)
        self._judge_deploys(entries, starts)
        if kind := scene.memo.get("innocent"):
            self._judge_uncharged(kind)
        min_jobs = plan.acks(scene.scale)
        verdict = audit_quickly(scene.receipts, scene.effects, scene.store, queue=QUEUE, min_jobs=min_jobs)
        if self._proof == "spark":
            scene.say("starting Spark for the audit: this takes a while")
            lake = scene.directory / "lake"
            url = scene.lab_server.url
            found = audit(scene.receipts, scene.effects, url, lake, min_jobs=min_jobs)
            if found.answer != "PASS" or verdict.answer == "PASS":
                verdict = found
        return verdict

    def _judge_restarts(self, entries: list[LedgerEntry], starts: list[HandlerRecord]) -> None:
        """How soon jobs that a fault interrupted ran again, and how often one was handed out for nothing."""
        scene, proof, restarts = self.scene, self._plan.proof, self._restarts
        handed = unstarted(entries, starts)
        job, self._unstarted = max(handed.items(), key=lambda item: item[1], default=(0, 0))
        if proof.max_unstarted is not None and self._unstarted > proof.max_unstarted:
            output = f"job {job} was handed out {self._unstarted} times without a start"
            scene.report_failure(f"{output}, {proof.max_unstarted} are allowed")
            self._keep_histories(entries, {job})
        if not restarts:
            return
        times = {50: proof.restart_p50, 99: proof.restart_p99}
        found = {percent: percentile(restarts, percent) for percent in times}
        words = ", ".join(f"p{percent} {took:.2f} s" for percent, took in found.items())
        scene.say(f"{len(restarts):,} jobs interrupted, started again after {words}, at most {restarts[-1]:.2f} s")
        scene.say(f"at most {self._unstarted} hand-outs of a job without a start")
        for percent, limit in times.items():
            if limit is not None and found[percent] > limit:
                took = f"{found[percent]:.2f} s (p{percent})"
                scene.report_failure(f"jobs that were interrupted started again after {took}, {limit:g} s is allowed")

    def _judge_deploys(self, entries: list[LedgerEntry], starts: list[HandlerRecord]) -> None:
        """What a drain promises: no claim after the signal, what is released starts soon, attempts are starts."""
        scene, proof = self.scene, self._plan.proof
        waits = deploys.release_waits(entries)
        if waits:
            p99 = percentile(waits, 99)
            scene.say(f"{len(waits):,} jobs released, claimed again after p99 {p99:.2f} s, at most {waits[-1]:.2f} s")
            if proof.release_p99 is not None and p99 > proof.release_p99:
                scene.report_failure(
                    f"released jobs were claimed again after {p99:.2f} s (p99), {proof.release_p99:g} s is allowed"
                )
        if proof.max_late_claim is not None:
            signals = scene.memo.get("signals", [])
            for owner, late in deploys.late_claims(entries, signals, proof.max_late_claim)[:_NAMED]:
                scene.report_failure(
                    f"{owner} claimed {late:.2f} s after its signal, {proof.max_late_claim:g} s is allowed"
                )
        if proof.attempts_are_starts:
            wrong = deploys.miscounted(entries, starts)
            for job, attempts, began in wrong[:_NAMED]:
                scene.report_failure(f"job {job} has {attempts} attempts and began {began} times")
            self._keep_histories(entries, {job for job, _, _ in wrong[:_NAMED]})

    def _judge_histories(self, entries: list[LedgerEntry]) -> None:
        """The whole ledger: fences grow by one, one holder at a time, one end, attempts counted. Ticks go on."""
        scene = self.scene
        violations = ledger(entries, drained=not self._plan.fleet.ticks)
        for violation in violations[:_NAMED]:
            scene.report_failure(f"the ledger: {violation}")
        if violations:
            self._keep_histories(entries, {violation.job for violation in violations[:_NAMED]})
        if scene.memo.get("ticks"):
            ticks = [e.record.tick for e in entries if e.record.verb == "fire" and e.record.tick is not None]
            if len(ticks) != len(set(ticks)):
                scene.report_failure(f"{len(ticks) - len(set(ticks))} slots of the schedule fired twice")
            if ticks and (missed := (max(ticks) - min(ticks)) // _TICK + 1 - len(set(ticks))):
                scene.report_failure(f"{missed} slots of the schedule did not fire")
            scene.say(f"{len(ticks)} slots fired")

    def _judge_acks(self, entries: list[LedgerEntry]) -> None:
        for job, delivery in unfinished(entries, read_records(self.scene.effects))[:_NAMED]:
            self.scene.report_failure(
                f"job {job} was acknowledged as delivery {delivery}, of which no handler returned"
            )

    def _keep_histories(self, entries: list[LedgerEntry], jobs: set[int | None]) -> None:
        """The ledger's entries of these jobs, for the investigation."""
        with (self.scene.directory / "ledger.ndjson").open("wb") as out:
            for entry in entries:
                for job_range in entry.record.ranges:
                    for job in jobs:
                        if job is not None and job_range.first <= job < job_range.first + job_range.n:
                            line = [
                                job,
                                entry.offset,
                                entry.record.at,
                                entry.record.verb,
                                entry.record.owner,
                                job_range,
                            ]
                            out.write(msgspec.json.encode(line) + b"\n")

    def _judge_uncharged(self, kind: str) -> None:
        dead = self.scene.store.browse(Query(queue=QUEUE, kind=kind), 0, MAX_BATCH).jobs
        gone = [job.id for job in dead if job.state.value == "dead"]
        if gone:
            self.scene.report_failure(f"given up though what they needed came back: {gone[:_NAMED]}")

    def _outcome(self, planned: int, verdict: AuditResult | None, missing: list[str]) -> ChaosResult:
        scene, plan = self.scene, self._plan
        bit = sum(strike.bit for strike in scene.strikes)
        accepted = (verdict.accepted if verdict else 0) + scene.acks
        if not missing and bit < math.ceil(planned * plan.proof.share):
            missing.append(f"{bit} of {planned} faults bit, the plan demands {math.ceil(planned * plan.proof.share)}")
        if not missing and accepted < plan.acks(scene.scale):
            missing.append(f"{accepted} jobs were accepted, the plan demands {plan.acks(scene.scale)}")
        times = [strike.recovery for strike in scene.strikes if strike.recovery is not None]
        p99 = percentile(times, 99) if times else None
        if p99 is not None and p99 > plan.proof.recovery:
            scene.report_failure(f"recovery took {p99:.1f} s, {plan.proof.recovery:g} s is allowed")
        broken = list(scene.failures)
        if verdict is not None and verdict.answer == "FAIL":
            broken += [f"{count}: {offenders}" for count, offenders in verdict.offenders.items()]
        invalid = [*missing, *(verdict.reasons if verdict else [])]
        return ChaosResult(
            plan=plan.name,
            title=plan.title,
            store=scene.kept,
            scale=scene.scale,
            seed=plan.seed,
            answer="FAIL" if broken else "INVALID" if invalid else "PASS",
            reasons=broken or invalid,
            planned=planned,
            made=len(scene.strikes),
            bit=bit,
            accepted=accepted,
            redelivered=verdict.redelivered if verdict else 0,
            dead=verdict.dead if verdict else 0,
            recovery_p50=percentile(times, 50) if times else None,
            recovery_p99=p99,
            interrupted=len(self._restarts),
            restart_p50=percentile(self._restarts, 50) if self._restarts else None,
            restart_p99=percentile(self._restarts, 99) if self._restarts else None,
            max_unstarted=self._unstarted,
            verdict=verdict,
        )

    def _say(self, say: Callable[[str], None]) -> Callable[[str], None]:
        def timed(text: str) -> None:
            say(f"{time.monotonic() - self._began:7.1f} s  {text}" if self._began else f"{'':9}  {text}")

        return timed


def _entries(store: Store) -> list[LedgerEntry]:
    found: list[LedgerEntry] = []
    while page := store.ledger(found[-1].offset if found else -1, MAX_BATCH):
        found += page
    return found
