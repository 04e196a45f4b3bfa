"""The report: what it shows, how large it gets, and that nothing of a hostile store runs or is fetched."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from forebay.spark.audit import AuditVerdict, CheckResult, Offender
from forebay.spark.figures import MAX_GROUPS, Figures
from forebay.spark.plots import MAX_BARS, MAX_POINTS, Curve, bars, lines, thinned
from forebay.spark.report import page

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</style></svg><svg onload=alert(3)>"
NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


class Seen(HTMLParser):
    """Tags and attributes of a page; what is not closed in order is an error."""

    VOID = frozenset({"meta", "line", "circle", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Seen:
    seen = Seen()
    seen.feed(text)
    seen.close()
    assert seen.open == []
    return seen


def step(number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"at": NOON + timedelta(seconds=number)}
    row |= dict.fromkeys(("accepted", "claimed", "acked", "retried", "died"), float(number % 17))
    for measure in ("wait", "late", "run", "total"):
        row |= {f"{measure}_p{rank}": number / 1000 for rank in (50, 95, 99)}
    return row


def hostile(steps: int = 50, groups: int = 3, queues: int = 3) -> Figures:
    queue = {f"{EVIL}{number}": number for number in range(queues)}
    counts = dict.fromkeys(
        ("accepted", "claimed", "acked", "retried", "died", "expired", "discarded", "cancelled", "redriven"), 1
    )
    death: dict[str, Any] = {
        "queue": EVIL,
        "kind": EVIL,
        "error_kind": EVIL,
        "message": EVIL * 400,
        "example": EVIL * 400,
    }
    death |= {"deaths": 3, "first_at": NOON, "last_at": NOON, "job_ids": list(range(10))}
    return Figures(
        EVIL,
        NOON,
        NOON + timedelta(seconds=steps),
        10,
        100,
        {EVIL: 3},
        [step(number) for number in range(steps)],
        [{"queue": name, "at": NOON, "depth": depth} for name, depth in queue.items()],
        [{**step(1), **counts, "queue": name} for name in queue],
        [{"rank": rank / 100, "wait": None, "late": 0.1, "run": 0.2, "total": 0.3} for rank in range(1, 100)],
        [{"deliveries": number, "jobs": 3, "acked": 2, "dead": 1, "open": 0} for number in range(200)],
        [
            {"queue": name, "attempt": 1, "retries": 5, "p50": 0.1, "p95": 1.0, "p99": 2.0}
            | {"most": 3.0, "same_delay": 0.2, "burst": None}
            for name in queue
        ],
        [death] * groups,
        7,
        [{"at": NOON, "least": 0.5, "most": 1.0, "starved": 2}],
    )


def failed() -> AuditVerdict:
    offenders = [Offender(seq=number, job_id=9, note=EVIL) for number in range(100)]
    return AuditVerdict(
        "FAIL", [EVIL], {"events": 1_000, "from": EVIL}, [CheckResult("lost", "I1", EVIL, "failed", 4, offenders)]
    )


def test_hostile_text_is_escaped() -> None:
    text = page(hostile(), failed(), EVIL)
    seen = read(text)
    assert not {"script", "img", "link", "iframe", "object", "embed", "form", "a"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name in {"src", "href", "style"}]
    assert "alert(1)" in "".join(seen.text)
    assert not re.search(r"https?://|@import|url\(", text)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in seen.attributes


def test_the_verdict_is_on_top_and_the_command_at_the_end() -> None:
    text = "".join(read(page(hostile(), failed(), "forebay audit --lake lake")).text)
    assert (
        text.index("FAIL") < text.index("Throughput") < text.index("Dead letters") < text.index("forebay audit --lake")
    )
    assert "not audited" in page(hostile(), None)
    assert "1 of 1 checks found a broken promise" in text


def test_a_page_stays_small_however_much_there_was() -> None:
    large = page(hostile(steps=20_000, groups=MAX_GROUPS, queues=40), failed())
    assert len(large) < 400_000
    assert large.count("<polyline") < 100


def test_an_empty_history_is_a_page_too() -> None:
    empty = Figures("sqlite:x", None, None, 0, 0, {}, [], [], [], [], [], [], [], 0, [])
    seen = read(page(empty, None))
    assert "nothing to show" in "".join(seen.text)


def test_thinning_keeps_the_ends_and_every_peak() -> None:
    points: list[tuple[float, float | None]] = [(float(x), 1.0) for x in range(10_000)]
    points[4_321] = (4321.0, 99.0)
    points[7_000] = (7000.0, -5.0)
    kept = thinned(points)
    assert len(kept) <= MAX_POINTS
    assert {points[0], points[-1], (4321.0, 99.0), (7000.0, -5.0)} <= set(kept)
    assert kept == sorted(kept)


def test_lines_break_where_nothing_was_measured() -> None:
    whole = lines("t", "s", [Curve("a", [(0, 1.0), (1, 2.0), (2, 3.0)])], "", ("", ""))
    broken = lines("t", "s", [Curve("a", [(0, 1.0), (1, 2.0), (2, None), (3, 3.0), (4, 1.0)])], "", ("", ""))
    assert (whole.count("<polyline"), broken.count("<polyline")) == (1, 2)
    assert "nothing to show" in lines("t", "s", [Curve("a", [(0, None), (1, float("nan"))])], "", ("", ""))


@pytest.mark.parametrize("top", [1e-9, 0.3, 7, 10, 99.9, 12_345, 4e9])
def test_an_axis_has_a_few_round_steps_and_holds_the_highest_bar(top: float) -> None:
    text = bars("t", "s", [("a", top), ("b", top / 2)], "")
    heights = [float(height) for height in re.findall(r'height="([\d.]+)"', text)]
    assert 3 <= text.count('class="g"') <= 7
    assert 240 * 0.5 < max(heights) <= 240


def test_too_many_bars_end_in_one_for_the_rest() -> None:
    text = bars("t", "s", [(str(number), 1.0) for number in range(100)], "")
    assert text.count("<rect") == MAX_BARS
    assert f"<title>more: {100 - MAX_BARS + 1}</title>" in text
