"""Screenshots for the docs: `python -m tests.browser.screens [folder]` plays the shop's day and photographs its pages.

Flat colours make small PNGs, so no other format is needed. Beside them, screens.json has the labels of each page: by
these a test notices that a picture is older than its page.
"""

import json
import re
import sys
import tempfile
from itertools import product
from pathlib import Path

from playwright.sync_api import Page

from forebay.core.job import State
from forebay.serve.actor import Role
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Query
from tests.browser.chrome import browser, log_in, opened
from tests.browser.stage import set_up
from tests.serve.site import Site
from tests.waiting import eventually

SHOTS = (
    ("overview", "/ui/"),
    ("queue", "/ui/queues/mail"),
    ("job", "/ui/jobs/{dead}"),
    ("dead-letters", "/ui/dead"),
)
SCHEMES = {"light": "", "dark": "-dark"}
LABELS = "screens.json"
_LABELLED = "h1, h2, h3, th:not([scope=row]), dt, nav a, main label, main button"
_CAUGHT_UP = re.compile(r"^forebay_ledger_behind_records(\{.*\})? 0(\.0)?$", re.MULTILINE)
_SETTLED_MS = 4_000
"""Until the page has followed a few times: what it shows first may be behind."""


def open_shot(page: Page, site: Site, path: str) -> None:
    """One of the pages, once it follows the store."""
    dead = next(job.id for job in site.store.browse(Query(queue="mail", state=State.DEAD), 0, 1_000).jobs)
    page.goto(f"{site.url}{path.format(dead=dead)}")
    page.wait_for_selector(".pulse[data-state=on]")


def labels(page: Page) -> list[str]:
    """Headings, heads of columns, names of fields, links and buttons; numbers differ from one day to the next."""
    texts = (re.sub(r"\d[\d,.]*", "#", " ".join(text.split())) for text in page.locator(_LABELLED).all_inner_texts())
    return sorted(set(filter(None, texts)))


def shoot(folder: Path) -> list[Path]:
    """All of them, anew."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    shown: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="forebay-") as home:
        url = f"sqlite:///{home}/shop.db"
        set_up(url)
        store = open_store(url)
        site = Site(store, ServeSettings(port=0, maintain=False)).start()
        try:
            metrics = site.client(Role.VIEWER)
            eventually(lambda: _CAUGHT_UP.search(metrics.get("/metrics").text), "the ledger is counted", step=0.5)
            with browser() as chrome:
                for (name, path), (scheme, suffix) in product(SHOTS, SCHEMES.items()):
                    with opened(chrome, scheme) as (page, _):
                        log_in(page, site, site.key(Role.ADMIN))
                        open_shot(page, site, path)
                        page.wait_for_timeout(_SETTLED_MS)
                        shown[name] = labels(page)
                        made.append(folder / f"{name}{suffix}.png")
                        page.screenshot(path=made[-1])
        finally:
            site.stop()
            store.close()
    made.append(folder / LABELS)
    made[-1].write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n")
    return made


if __name__ == "__main__":
    for path in shoot(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img")):
        sys.stdout.write(f"{path}  {path.stat().st_size // 1024} KiB\n")
