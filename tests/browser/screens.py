"""Screenshots for the docs: `python -m tests.browser.screens [folder]` plays the shop's day and photographs its pages.

Flat colours make small PNGs, so no other format is needed.
"""

import sys
import tempfile
from itertools import product
from pathlib import Path

from forebay.core.job import State
from forebay.serve.actor import Role
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Query
from tests.browser.chrome import browser, log_in, opened
from tests.browser.stage import set_up
from tests.serve.site import Site

SHOTS = (
    ("overview", "/ui/"),
    ("queue", "/ui/queues/mail"),
    ("job", "/ui/jobs/{dead}"),
    ("dead-letters", "/ui/dead"),
)
SCHEMES = {"light": "", "dark": "-dark"}
_SETTLED_MS = 4_000
"""Until the page has followed a few times: what it shows first may be behind."""


def shoot(folder: Path) -> list[Path]:
    """All of them, anew."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory(prefix="forebay-") as home:
        url = f"sqlite:///{home}/shop.db"
        set_up(url)
        store = open_store(url)
        site = Site(store, ServeSettings(port=0, maintain=False)).start()
        try:
            dead = next(job.id for job in store.browse(Query(queue="mail", state=State.DEAD), 0, 1_000).jobs)
            with browser() as chrome:
                for (name, path), (scheme, suffix) in product(SHOTS, SCHEMES.items()):
                    with opened(chrome, scheme) as (page, _):
                        log_in(page, site, site.key(Role.ADMIN))
                        page.goto(f"{site.url}{path.format(dead=dead)}")
                        page.wait_for_selector(".pulse[data-state=on]")
                        page.wait_for_timeout(_SETTLED_MS)
                        made.append(folder / f"{name}{suffix}.png")
                        page.screenshot(path=made[-1])
        finally:
            site.stop()
            store.close()
    return made


if __name__ == "__main__":
    for path in shoot(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img")):
        sys.stdout.write(f"{path}  {path.stat().st_size // 1024} KiB\n")
