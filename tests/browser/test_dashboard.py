"""The dashboard in a real Chromium: log in, filter, act and move about by keyboard, by day and by night.

Nothing may complain: an error in the console, also one of the content policy, is a failure. Every page is clean to axe.
"""

import re
from collections.abc import Sequence
from datetime import timedelta

import pytest
from playwright.sync_api import Browser, Page, expect

from forebay.core.job import Draft, Progress, State
from forebay.core.outcome import Ack
from forebay.serve.actor import Role
from forebay.store.protocol import Query, Want
from tests.browser.chrome import log_in, opened, violations
from tests.serve.site import Site

PAGES = (
    "/ui/",
    "/ui/queues/mail",
    "/ui/jobs",
    "/ui/jobs?state=dead&queue=mail",
    "/ui/dead",
    "/ui/bulk/new?state=dead",
    "/ui/bulk/new?state=dead&act=purge",
    "/ui/schedules",
    "/ui/schedules/nightly-report",
    "/ui/workers",
    "/ui/logs",
    "/ui/logs/clicks?group=billing",
    "/ui/operators",
    "/ui/keys",
    "/ui/nowhere",
)


def one(shop: Site, state: State) -> int:
    jobs = shop.store.browse(Query(state=state), 0, 1_000).jobs
    return jobs[0].id


def live(page: Page) -> None:
    expect(page.locator(".pulse")).to_have_text("live")


def test_logging_in_and_out(shop: Site, chrome: Browser) -> None:
    with opened(chrome) as (page, complaints):
        page.goto(f"{shop.url}/ui/jobs")
        expect(page).to_have_url(re.compile("/ui/login$"))
        assert page.evaluate("document.activeElement.id") == "key"
        log_in(page, shop, shop.key(Role.VIEWER))
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(re.compile("/ui/login$"))
        page.goto(f"{shop.url}/ui/")
        expect(page).to_have_url(re.compile("/ui/login$"))
        assert complaints == []


def test_a_wrong_key_is_refused(shop: Site, chrome: Browser) -> None:
    with opened(chrome) as (page, _):
        page.goto(f"{shop.url}/ui/login")
        page.get_by_label("Key").fill("fb_0123456789ab_nothing")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")


def test_the_overview_follows_by_itself(shop: Site, chrome: Browser) -> None:
    with opened(chrome) as (page, complaints):
        log_in(page, shop, shop.key(Role.VIEWER))
        live(page)
        page.locator("tbody a").first.focus()
        before = page.evaluate("document.activeElement.textContent")
        shop.store.enqueue([Draft("fresh", None, "fresh-queue")] * 3)
        row = page.get_by_role("row").filter(has_text="fresh-queue")
        expect(row).to_be_visible()
        expect(row.locator("td").nth(4)).to_have_text("3")
        assert page.evaluate("document.activeElement.tagName") == "A"
        assert before
        page.keyboard.press(".")
        expect(page.locator(".pulse")).to_have_text("paused")
        assert complaints == []


def test_jobs_are_filtered_and_paged(shop: Site, chrome: Browser) -> None:
    with opened(chrome) as (page, complaints):
        log_in(page, shop, shop.key(Role.VIEWER))
        page.get_by_role("link", name="Jobs", exact=True).click()
        page.get_by_label("State").select_option("dead")
        page.get_by_label("Queue").fill("mail")
        page.get_by_role("button", name="Show").click()
        states = page.locator("tbody .state")
        assert set(states.all_text_contents()) == {"dead"}
        assert set(page.locator("tbody td:nth-child(3)").all_text_contents()) == {"mail"}
        page.get_by_role("link", name="Clear").click()
        first = page.locator("tbody th").first.text_content()
        page.get_by_role("link", name="Older").click()
        expect(page.locator("tbody th").first).not_to_have_text(first or "")
        page.get_by_label("Id, key or subject").fill(str(one(shop, State.DEAD)))
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text(str(one(shop, State.DEAD)))
        assert complaints == []


def test_a_job_is_cancelled_while_its_page_is_open(shop: Site, chrome: Browser) -> None:
    (receipt,) = shop.store.enqueue([Draft("patient", {"n": 1}, "mail", delay=3_600_000_000)])
    with opened(chrome) as (page, complaints):
        log_in(page, shop, shop.key(Role.OPERATOR))
        page.goto(f"{shop.url}/ui/jobs/{receipt.id}")
        live(page)
        expect(page.locator(".why .state")).to_have_text("waiting")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("status")).to_contain_text("will not run")
        expect(page.locator(".why .state")).to_have_text("cancelled")
        expect(page.locator(".moments b").last).to_have_text("cancelled")
        assert complaints == []
    job = shop.store.get([receipt.id])[0]
    assert job is not None
    assert job.state is State.CANCELLED


def test_dead_letters_go_from_dry_run_to_redriven(shop: Site, chrome: Browser) -> None:
    dead = shop.store.backlog(["media"])[0].dead
    assert dead
    with opened(chrome) as (page, complaints):
        log_in(page, shop, shop.key(Role.OPERATOR))
        page.goto(f"{shop.url}/ui/dead?queue=media")
        page.get_by_role("link", name="Redrive…").first.click()
        page.get_by_label("Rate").fill("1000")
        page.get_by_label("Patch").fill('{"checked": true}')
        page.get_by_role("button", name="Dry run").click()
        go = page.get_by_role("button", name=re.compile("^Redrive [0-9]+ at"))
        expect(go).to_be_visible()
        expect(page.locator("pre").nth(1)).to_contain_text('"checked": true')
        assert shop.store.backlog(["media"])[0].dead == dead
        go.click()
        expect(page.locator(".phase")).to_have_text("done")
        assert complaints == []
    assert shop.store.backlog(["media"])[0].dead < dead


def arrived(page: Page, title: str) -> None:
    """The page is there, and its script listens to keys."""
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    page.wait_for_load_state()


def test_everything_is_reached_by_keyboard(shop: Site, chrome: Browser) -> None:
    with opened(chrome) as (page, complaints):
        log_in(page, shop, shop.key(Role.VIEWER))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        for letter, title in (
            ("j", "Jobs"),
            ("d", "Dead letters"),
            ("s", "Schedules"),
            ("w", "Workers"),
            ("o", "Overview"),
        ):
            page.keyboard.press("g")
            page.keyboard.press(letter)
            arrived(page, title)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.keyboard.press("g")
        page.keyboard.press("j")
        arrived(page, "Jobs")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") == "text"
        page.keyboard.type("j?g")
        assert page.evaluate("document.activeElement.value") == "j?g"
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("j")
        second = page.locator("tbody tr").nth(1).locator("a").first
        expect(second).to_be_focused()
        number = second.text_content() or ""
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text(number)
        assert complaints == []


def judged(shop: Site, chrome: Browser, axe: str, scheme: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """What axe has against these pages."""
    found: dict[str, list[str]] = {}
    with opened(chrome, scheme) as (page, _):
        page.goto(f"{shop.url}/ui/login")
        found["/ui/login"] = violations(page, axe)
        log_in(page, shop, shop.key(Role.ADMIN))
        for path in paths:
            page.goto(f"{shop.url}{path}")
            found[path] = violations(page, axe)
        page.keyboard.press("?")
        found["shortcuts"] = violations(page, axe)
    return {path: each for path, each in found.items() if each}


def few(shop: Site) -> list[str]:
    """One page of each sort, with short tables; all of them are for the night."""
    job = f"/ui/jobs/{one(shop, State.DEAD)}"
    return ["/ui/", "/ui/queues/mail", "/ui/jobs?queue=reports", job, "/ui/schedules/nightly-report", "/ui/keys"]


def test_pages_are_clean_to_axe(shop: Site, chrome: Browser, axe: str) -> None:
    assert judged(shop, chrome, axe, "light", few(shop)) == {}


def test_pages_are_clean_by_night(shop: Site, chrome: Browser, axe: str) -> None:
    """The colours differ, the markup does not: the pages with most colours will do."""
    assert judged(shop, chrome, axe, "dark", few(shop)[:2]) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_pages_are_clean_in_full(shop: Site, chrome: Browser, axe: str, scheme: str) -> None:
    jobs = [f"/ui/jobs/{one(shop, state)}" for state in (State.DEAD, State.RUNNING, State.DONE)]
    assert judged(shop, chrome, axe, scheme, [*PAGES, *jobs]) == {}


def test_day_and_night_differ_and_nothing_complains(shop: Site, chrome: Browser) -> None:
    papers = []
    for scheme in ("light", "dark"):
        with opened(chrome, scheme) as (page, complaints):
            log_in(page, shop, shop.key(Role.ADMIN))
            for path in PAGES[:-1]:
                page.goto(f"{shop.url}{path}")
                wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
                assert not wide, f"{path} scrolls sideways"
            papers.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert complaints == []
    assert papers[0] != papers[1]


@pytest.mark.parametrize("width", [1360, 390])
def test_no_placeholder_is_clipped(shop: Site, chrome: Browser, width: int) -> None:
    clipped = """() => [...document.querySelectorAll("input[placeholder]")].filter((input) => {
        const was = input.value;
        input.value = input.placeholder;
        const wide = input.scrollWidth > input.clientWidth;
        input.value = was;
        return wide;
    }).map((input) => `${input.name}: ${input.placeholder}`)"""
    with opened(chrome, width=width) as (page, _):
        log_in(page, shop, shop.key(Role.ADMIN))
        for path in PAGES[:-1]:
            page.goto(f"{shop.url}{path}")
            assert page.evaluate(clipped) == [], path


def test_a_schedule_is_run_from_its_row(shop: Site, chrome: Browser) -> None:
    with opened(chrome) as (page, complaints):
        log_in(page, shop, shop.key(Role.OPERATOR))
        page.goto(f"{shop.url}/ui/schedules")
        page.get_by_role("row").filter(has_text="invoices").get_by_role("button", name="Run now").click()
        expect(page.get_by_role("status")).to_contain_text("enqueued just now")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Job")
        assert complaints == []


def test_a_finished_job_has_a_page(shop: Site, chrome: Browser) -> None:
    (receipt,) = shop.store.enqueue([Draft("brief", {"n": 1}, "brief")])
    (lease,) = shop.store.claim([Want("brief", 1)], "w", timedelta(minutes=1))
    shop.store.settle([(lease, Ack())])
    with opened(chrome) as (page, complaints):
        log_in(page, shop, shop.key(Role.VIEWER))
        page.get_by_role("link", name="Jobs", exact=True).click()
        page.get_by_label("Id, key or subject").fill(str(receipt.id))
        page.keyboard.press("Enter")
        expect(page.locator(".why")).to_contain_text("no longer in the store")
        expect(page.locator(".moments li").last).to_contain_text("acked")
        assert complaints == []


def test_narrow_screens_do_not_scroll_sideways(shop: Site, chrome: Browser) -> None:
    with opened(chrome, width=390) as (page, complaints):
        log_in(page, shop, shop.key(Role.ADMIN))
        for path in PAGES[:-1]:
            page.goto(f"{shop.url}{path}")
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{path} is {wide} pixels too wide"
        assert complaints == []


def test_pages_are_read_without_a_script(shop: Site, chrome: Browser) -> None:
    context = chrome.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        log_in(page, shop, shop.key(Role.OPERATOR))
        expect(page.get_by_role("row").filter(has_text="mail")).to_be_visible()
        page.goto(f"{shop.url}/ui/jobs/{one(shop, State.DEAD)}")
        expect(page.locator(".moments li").first).to_contain_text("accepted")
        page.get_by_role("button", name="Redrive").click()
        expect(page.get_by_role("status")).to_contain_text("all its attempts again")
    finally:
        context.close()


def test_a_hostile_name_runs_nothing(shop: Site, chrome: Browser) -> None:
    hostile = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
    (receipt,) = shop.store.enqueue([Draft("k", {"x": hostile}, "mail", subject=hostile, meta={"m": hostile})])
    with opened(chrome) as (page, complaints):
        log_in(page, shop, shop.key(Role.ADMIN))
        page.goto(f"{shop.url}/ui/jobs/{receipt.id}")
        live(page)
        expect(page.locator("dd").filter(has_text="onerror").first).to_be_visible()
        assert page.evaluate("window.owned") is None
        assert complaints == []


def test_the_progress_of_a_running_job_is_live(shop: Site, chrome: Browser, axe: str) -> None:
    job_id = one(shop, State.RUNNING)
    (job,) = shop.store.get([job_id])
    assert job is not None
    fence = (job.id, job.delivery)
    shop.store.report_progress([(fence, Progress(0.25, "page 1 of 4"))])
    with opened(chrome) as (page, complaints):
        log_in(page, shop, shop.key(Role.VIEWER))
        page.goto(f"{shop.url}/ui/jobs/{job_id}")
        live(page)
        expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.25")
        expect(page.locator("#live dl.facts")).to_contain_text("25 %, page 1 of 4")
        shop.store.report_progress([(fence, Progress(0.5, "page 2 of 4"))])
        expect(page.locator("#live dl.facts")).to_contain_text("50 %, page 2 of 4")
        expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.5")
        assert violations(page, axe) == []
        assert complaints == []
