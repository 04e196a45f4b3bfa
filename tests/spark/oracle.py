"""The audit once more, in plain SQL on DuckDB: written from the definitions, sharing no line with the one on Spark.

Where Spark sorts and looks at the row before, this asks for each event "which was the last one before you", "is there
none", "are there two". Slow, and easy to believe. Answers are (check, seq, job, delivery, offset, place).
"""

from datetime import timedelta

import duckdb
import pyarrow as pa

from forebay.spark.audit import AuditOptions

Row = tuple[str, int | None, int | None, int | None, int | None, int | None]

_PREPARE = """
CREATE TABLE seen AS SELECT DISTINCT * EXCLUDE (places) FROM raw_events;
CREATE TABLE clash AS
  SELECT "offset", place FROM seen GROUP BY ALL HAVING count(*) > 1;
CREATE TABLE e AS
  SELECT * FROM seen QUALIFY row_number() OVER (PARTITION BY "offset", place ORDER BY {columns}) = 1;
CREATE TABLE size AS
  SELECT "offset", count(DISTINCT place) AS n, greatest(max(place) + 1, max(places)) AS said
  FROM raw_events GROUP BY ALL;
CREATE TABLE r AS SELECT DISTINCT * FROM raw_receipts;
CREATE TABLE f AS SELECT DISTINCT * FROM raw_effects;
CREATE TABLE life AS
  SELECT row_number() OVER (ORDER BY "offset", place) AS n, * FROM e
  WHERE change IN ('accepted', 'claimed', 'extended', 'acked', 'retried', 'died', 'released', 'discarded', 'cancelled',
                   'expired', 'shed', 'redriven', 'purged');
CREATE TABLE previous AS
  SELECT l.n, max(p.n) AS before FROM life l JOIN life p ON p.job_id = l.job_id AND p.n < l.n GROUP BY l.n;
CREATE TABLE beside AS
  SELECT l.*, p.change AS was, p.delivery AS was_delivery, p.attempt AS was_attempt, p.lease_until AS was_until,
    CASE p.change WHEN 'accepted' THEN p.due_at ELSE p.next_at END AS was_due,
    p.change IN ('acked', 'died', 'discarded', 'cancelled', 'expired', 'shed', 'purged') AS was_over,
    (SELECT max(b.max_attempts) FROM life b WHERE b.job_id = l.job_id AND b.n < l.n) AS allowed,
    p.error_kind AS was_error, (SELECT arg_max(b.lease_until, b.n) FROM life b
      WHERE b.job_id = l.job_id AND b.n < l.n AND b.lease_until IS NOT NULL) AS last_until,
    coalesce((SELECT max(coalesce(b.delivery, 0)) FROM life b WHERE b.job_id = l.job_id AND b.n < l.n), 0) AS top
  FROM life l LEFT JOIN previous v ON v.n = l.n LEFT JOIN life p ON p.n = v.before;
"""

_LIFE = {
    "unborn": "was IS NULL AND change <> 'accepted'",
    "born_twice": "was IS NOT NULL AND change = 'accepted'",
    "ended_twice": "was_over AND change IN ('acked', 'died', 'discarded', 'cancelled', 'expired', 'shed')",
    "resurrected": "was_over AND change = 'claimed'",
    "stale_settle": """was IS NOT NULL
        AND (change IN ('retried', 'released', 'extended')
             OR (change IN ('acked', 'died', 'discarded') AND NOT was_over))
        AND NOT (was IN ('claimed', 'extended') AND was_delivery = delivery)""",
    "lease_overlap": "change = 'claimed' AND was IN ('claimed', 'extended') AND event_at < was_until",
    "early_take_back": "change = 'claimed' AND was_error = 'forebay.Abandoned' AND event_at < last_until",
    "early_claim": """change = 'claimed' AND (event_at < due_at
        OR (was IN ('accepted', 'retried', 'released', 'redriven') AND event_at < was_due))""",
    "delivery_step": "change = 'claimed' AND was IS NOT NULL AND coalesce(delivery, 0)::BIGINT - top <> 1",
    "too_many_attempts": "change IN ('claimed', 'died') AND attempt > allowed",
    "miscounted_attempts": """change = 'claimed' AND coalesce(attempt, 0) <> CASE
        WHEN was IN ('accepted', 'redriven') THEN 1 WHEN was = 'released' THEN was_attempt
        WHEN was IN ('retried', 'claimed', 'extended') THEN coalesce(was_attempt, 0)::BIGINT + 1 END""",
    "died_early": "change = 'died' AND attempt < allowed AND NOT list_contains($dropped, coalesce(error_kind, ''))",
    "illegal": """(change IN ('cancelled', 'expired', 'shed') AND was IN ('claimed', 'extended'))
        OR (change = 'redriven' AND was IS NOT NULL AND was NOT IN ('died', 'expired', 'shed'))
        OR (change = 'purged' AND was IS NOT NULL AND (was = 'purged' OR NOT was_over))""",
}

_RECEIPT_CHECKS = """
SELECT 'lost', min(seq), job_id, NULL, NULL, NULL FROM r
  WHERE job_id NOT IN (SELECT job_id FROM e WHERE change = 'accepted') AND answer IN ('accepted', 'duplicate', 'merged')
  GROUP BY job_id
UNION ALL
SELECT DISTINCT 'lost', o.seq, o.job_id, NULL, NULL, NULL FROM r o JOIN r n USING (job_id)
  WHERE o.answer = 'accepted' AND n.answer = 'accepted' AND o.seq <> n.seq AND (n.sent_at, n.seq) > (o.sent_at, o.seq)
    AND job_id IN (SELECT job_id FROM e WHERE change = 'accepted')
UNION ALL
SELECT 'unfinished', NULL, job_id, NULL, NULL, NULL FROM e b WHERE change = 'accepted' AND NOT EXISTS (
    FROM e x WHERE x.job_id = b.job_id AND (x.change = 'purged'
      OR (x.change IN ('acked', 'died', 'discarded', 'cancelled', 'expired', 'shed') AND NOT EXISTS (
        FROM e y WHERE y.job_id = b.job_id AND y.change = 'redriven'
          AND (y."offset", y.place) > (x."offset", x.place)))))
  GROUP BY job_id
UNION ALL
SELECT 'undone', min(seq), job_id, NULL, NULL, NULL FROM r
  WHERE answer IN ('accepted', 'duplicate', 'merged') AND job_id IN (SELECT job_id FROM e WHERE change = 'acked')
    AND job_id NOT IN (SELECT job_id FROM f) GROUP BY job_id
UNION ALL
SELECT DISTINCT 'unexpected', seq, job_id, NULL, NULL, NULL FROM f
  WHERE job_id NOT IN (SELECT job_id FROM e WHERE change = 'accepted')
    OR (seq IN (SELECT seq FROM r) AND seq NOT IN (SELECT seq FROM r WHERE answer <> 'refused'))
    OR (seq NOT IN (SELECT seq FROM r) AND job_id IN (SELECT job_id FROM r WHERE job_id IS NOT NULL))
UNION ALL
SELECT DISTINCT 'foreign_effect', seq, job_id, NULL, NULL, NULL FROM f
  WHERE seq IN (SELECT seq FROM r WHERE answer <> 'refused')
    AND job_id IN (SELECT job_id FROM r WHERE job_id IS NOT NULL)
    AND seq NOT IN (SELECT seq FROM r WHERE r.job_id = f.job_id OR answer = 'unknown')
UNION ALL
SELECT DISTINCT 'unreceipted', seq, job_id, NULL, NULL, NULL FROM f
  WHERE job_id IN (SELECT job_id FROM e WHERE change = 'accepted') AND seq NOT IN (SELECT seq FROM r)
    AND job_id NOT IN (SELECT job_id FROM r WHERE job_id IS NOT NULL)
UNION ALL
SELECT 'effect_of_dead', seq, job_id, max(delivery), NULL, NULL FROM f
  WHERE job_id IN (SELECT job_id FROM e WHERE change = 'died')
    AND job_id NOT IN (SELECT job_id FROM e WHERE change = 'acked') GROUP BY seq, job_id
UNION ALL
SELECT 'duplicated', seq, max(job_id), NULL, NULL, NULL
  FROM (SELECT seq, job_id FROM f UNION SELECT seq, job_id FROM r WHERE answer IN ('accepted', 'duplicate'))
  JOIN (SELECT DISTINCT job_id, queue FROM e) USING (job_id)
  GROUP BY seq, queue HAVING min(job_id) <> max(job_id)
UNION ALL
SELECT 'recovered', seq, min(job_id), NULL, NULL, NULL FROM f
  WHERE seq IN (SELECT seq FROM r WHERE answer = 'unknown')
    AND seq NOT IN (SELECT seq FROM r WHERE answer NOT IN ('unknown', 'refused')) GROUP BY seq
UNION ALL
SELECT 'repeated_effect', seq, job_id, delivery, NULL, NULL FROM f GROUP BY seq, job_id, delivery HAVING count(*) > 1
UNION ALL
SELECT 'redelivered', seq, job_id, max(delivery), NULL, NULL FROM f GROUP BY seq, job_id
  HAVING min(delivery) <> max(delivery)
UNION ALL
SELECT 'unfenced_effect', min(seq), job_id, delivery, NULL, NULL FROM f
  WHERE (job_id, delivery) NOT IN (SELECT (job_id, delivery) FROM e WHERE change = 'claimed')
    AND job_id IN (SELECT job_id FROM e WHERE change = 'accepted') GROUP BY job_id, delivery
UNION ALL
SELECT 'conflict', NULL, min(seen.job_id), NULL, "offset", place FROM clash JOIN seen USING ("offset", place)
  GROUP BY "offset", place
UNION ALL
SELECT 'ledger_gap', NULL, NULL, NULL, "offset" + 1, NULL FROM (SELECT DISTINCT "offset" FROM e)
  WHERE "offset" + 1 NOT IN (SELECT "offset" FROM e) AND "offset" < (SELECT max("offset") FROM e)
UNION ALL
SELECT 'ledger_gap', NULL, NULL, NULL, "offset", NULL FROM size WHERE n <> said
UNION ALL
SELECT 'slot_twice', NULL, arg_max(job_id, "offset"), NULL, max("offset"), NULL FROM e WHERE verb = 'fire'
  GROUP BY name, tick HAVING count(DISTINCT "offset") > 1
"""

_LINES = """
WITH own AS (SELECT n, l.*, b.line FROM life l
    JOIN (SELECT job_id, {by} AS line FROM life WHERE change = 'accepted' AND queue = $queue) b USING (job_id)),
  job AS (SELECT job_id, line,
      min(n) FILTER (change = 'accepted') AS born, min(n) FILTER (change = 'claimed') AS claimed,
      coalesce(min(n) FILTER (change IN ('acked', 'died', 'discarded', 'cancelled', 'expired', 'shed')), 1e18) AS ended
    FROM own GROUP BY ALL),
  turn AS (SELECT c.job_id, c.line, c.n AS claimed, coalesce(
      (SELECT min(s.n) FROM own s WHERE s.job_id = c.job_id AND s.delivery = c.delivery
        AND s.change IN ('acked', 'retried', 'died', 'released', 'discarded')),
      (SELECT min(s.n) FROM own s WHERE s.job_id = c.job_id AND s.change = 'claimed' AND s.n > c.n), 1e18) AS ended
    FROM own c WHERE c.change = 'claimed'),
  wrong AS (
    SELECT y.claimed AS n FROM job y JOIN job o ON o.line = y.line AND o.job_id < y.job_id
      AND o.born < y.claimed AND o.ended > y.claimed
    UNION
    SELECT y.claimed FROM turn y JOIN turn o ON o.line = y.line AND o.job_id <> y.job_id
      AND o.claimed < y.claimed AND o.ended > y.claimed)
SELECT 'out_of_turn', NULL, job_id, delivery, "offset", place FROM life JOIN wrong USING (n)
"""

_SLOTS = """
SELECT 'slot_missing', NULL, NULL, NULL, max(a."offset"), NULL FROM e a
  WHERE a.verb = 'fire' AND a.name = $name AND a.tick > (SELECT min(tick) FROM e WHERE name = $name)
    AND a.tick - to_microseconds($every) NOT IN (SELECT tick FROM e WHERE name = $name AND tick IS NOT NULL)
  GROUP BY a.tick
UNION ALL
SELECT 'slot_missing', NULL, NULL, NULL, NULL, NULL WHERE $name NOT IN (SELECT name FROM e WHERE tick IS NOT NULL)
"""

_LACKS = """
SELECT min("offset") > 0 OR bool_or(verb = 'put_ledger_rule' AND name = 'off') FROM e
"""

_DOUBTS = """
SELECT count(*) = 0 FROM e
UNION ALL
SELECT count(*) = 0 FROM r WHERE answer <> 'refused'
UNION ALL
SELECT bool_or(effect_at IS NULL) FROM f
UNION ALL
SELECT count(DISTINCT job_id) < $least FROM e WHERE change = 'accepted'
UNION ALL
SELECT count(DISTINCT job_id) FILTER (job_id IN
    (SELECT job_id FROM r WHERE answer IN ('accepted', 'duplicate', 'merged') AND job_id IS NOT NULL))
  < $coverage * count(DISTINCT job_id) FROM e WHERE change = 'accepted' AND verb <> 'fire'
"""
_NOTES = {"recovered", "redelivered", "effect_of_dead", "early_take_back", "died_early"}


def oracle(
    events: pa.Table, receipts: pa.Table, effects: pa.Table, options: AuditOptions, *, cut: bool = False
) -> tuple[str, list[Row]]:
    """The answer, and every offender. Of a ledger from its beginning, without its logs. `cut`: its end is missing."""
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, table in (("events", events), ("receipts", receipts), ("effects", effects)):
            db.register(f"raw_{name}", table)
        columns = ", ".join(f'"{name}" NULLS FIRST' for name in events.column_names if name != "places")
        db.execute(_PREPARE.format(columns=columns))
        rows: list[Row] = []
        for check, wrong in _LIFE.items():
            given = {"dropped": sorted(options.dropped or ())} if "$dropped" in wrong else {}
            query = (
                f"""SELECT '{check}', NULL, job_id, coalesce(delivery, 0), "offset", place FROM beside WHERE {wrong}"""
            )
            rows += db.execute(query, given).fetchall()
        rows += [row for row in db.execute(_RECEIPT_CHECKS).fetchall() if options.drained or row[0] != "unfinished"]
        for queue, by in options.ordered.items():
            rows += db.execute(_LINES.format(by=by), {"queue": queue}).fetchall()
        for name, every in options.schedules.items():
            micros = every // timedelta(microseconds=1)
            rows += db.execute(_SLOTS, {"name": name, "every": micros}).fetchall()
        bounds = {"least": options.min_jobs, "coverage": options.coverage}
        doubts = any(doubt for (doubt,) in db.execute(_DOUBTS, bounds).fetchall())
        checks = {row[0] for row in rows}
        lacking = cut or "ledger_gap" in checks or any(lacks for (lacks,) in db.execute(_LACKS).fetchall())
        return _answer(checks, doubts, lacking, options), rows


_ROBUST = {"duplicated", "repeated_effect", "redelivered", "born_twice", "foreign_effect", "slot_twice", "conflict"}
"""What the ledger's missing records cannot have caused."""


def _answer(checks: set[str], doubts: bool, lacking: bool, options: AuditOptions) -> str:
    strict = {"redelivered"} if options.exactly_once else set()
    strict |= {"died_early"} if options.dropped is not None else set()
    broken = checks - {"unreceipted", "ledger_gap"} - (_NOTES - strict)
    if broken & _ROBUST if lacking else broken:
        return "FAIL"
    return "INVALID" if doubts or lacking or "unreceipted" in checks else "PASS"
