"""Numbers that many readers share: read once, renewed aside where that is slow, never from before a change."""

from threading import Event

import pytest

from forebay.core.job import Draft
from forebay.serve.actor import Actor, Role
from forebay.serve.dashboard import view_cache
from forebay.serve.dashboard.view_cache import CachedValue, Observation
from forebay.store.protocol import Store
from tests.serve.site import Serving

ANONYMOUS = Actor("any", frozenset({Role.ADMIN}))


class ManualTime:
    """A clock that is turned by hand, and a measurement that takes `takes` of its seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.takes = 0.0
        self.measured = 0
        self.renewed = Event()

    def __call__(self) -> float:
        return self.now

    def measure(self) -> int:
        self.measured += 1
        self.now += self.takes
        self.renewed.set()
        return self.measured


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    made = ManualTime()
    monkeypatch.setattr(view_cache, "monotonic", made)
    return made


def test_an_answer_is_good_for_a_second(hand: ManualTime) -> None:
    cached = CachedValue(hand.measure)
    assert [cached.get(), cached.get()] == [1, 1]
    hand.now += 1.1
    assert cached.get() == 2
    cached.invalidate()
    assert cached.get() == 3


def test_a_slow_answer_is_renewed_while_the_old_one_is_read(hand: ManualTime) -> None:
    hand.takes = 0.5
    cached = CachedValue(hand.measure)
    assert cached.get() == 1
    hand.now += 5
    hand.renewed.clear()
    assert cached.get() == 1, "the cached value is returned meanwhile"
    assert hand.renewed.wait(10)
    with cached._guard:
        assert cached.get() == 2
    hand.now += 100
    assert cached.get() == 3, "too old to be shown"


def test_an_answer_that_others_got_is_not_asked_for_again(hand: ManualTime) -> None:
    received: list[Observation[int]] = []
    cached = CachedValue(hand.measure, lambda: received[-1] if received else None)
    received.append(Observation(70, hand.now - 0.2, 0.4))
    assert cached.get() == 70
    assert hand.measured == 0
    cached.invalidate()
    assert cached.get() == 1, "they were read before the change"
    hand.now += 3
    received.append(Observation(71, hand.now, 0.4))
    assert cached.get() == 71
    assert hand.measured == 1


def test_an_answer_that_was_under_way_during_a_change_is_no_answer(hand: ManualTime) -> None:
    def measure() -> int:
        if not hand.measured:
            hand.now += 0.1
            cached.invalidate()
        return hand.measure()

    cached = CachedValue(measure)
    assert cached.get() == 1
    assert cached.get() == 2
    assert cached.get() == 2


def test_the_first_page_shows_what_the_metrics_have_counted(store: Store, serve_on: Serving) -> None:
    site = serve_on(store)
    store.enqueue([Draft("k", None, "mail")])
    site.context.metrics.poller.poll(slowly=False)
    pages = site.app.state.view_cache
    seen = site.context.metrics.poller.snapshot
    assert seen is not None
    assert pages.totals(ANONYMOUS).deepest == list(seen.backlogs)
    store.enqueue([Draft("k", None, "mail")])
    pages.invalidate()
    assert [each.ready for each in pages.totals(ANONYMOUS).deepest] == [2]


def test_a_first_count_that_takes_long_is_not_waited_for(hand: ManualTime) -> None:
    slow = Event()

    def measure() -> int:
        assert slow.wait(10)
        return hand.measure()

    cached = CachedValue(measure)
    assert cached.soon(0.01) is None
    assert cached.soon(0.01) is None
    slow.set()
    assert cached.soon(10) == 1
    assert hand.measured == 1


def test_the_overview_says_that_it_counts_and_then_shows_the_queues(
    store: Store, serve_on: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Event()
    store.enqueue([Draft("k", None, "mail")])
    counting = store.totals
    monkeypatch.setattr(store, "totals", lambda limit: slow.wait(10) and counting(limit))
    site = serve_on(store)
    browser = site.with_key(None, {"Origin": site.url})
    browser.post("/ui/login", data={"key": site.key(Role.VIEWER)})
    page = browser.get("/ui/")
    assert page.status_code == 200
    assert "being counted" in page.text
    assert "No queues yet" not in page.text
    assert browser.get("/ui/jobs").status_code == 200
    slow.set()
    with site.app.state.view_cache._totals._guard:
        pass
    page = browser.get("/ui/")
    assert "being counted" not in page.text
    assert "/ui/queues/mail" in page.text
