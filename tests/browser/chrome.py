"""A real browser: the Chromium of this machine, or the one that `make servers` unpacked; and axe for its pages.

`FOREBAY_CHROMIUM` names another one.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.serve.site import Site

_UNPACKED = Path(sys.prefix) / "chromium" / "run"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_WIDTH, _HEIGHT = 1360, 900


class Missing(Exception):
    """What a browser test needs is not on this machine."""


def chromium() -> str:
    """Where it is."""
    found = os.environ.get("FOREBAY_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None and _UNPACKED.exists():
        found = str(_UNPACKED)
    if found is None:
        raise Missing("no Chromium: install one, name it by FOREBAY_CHROMIUM, or run `make servers`")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """One Chromium process. Its sandbox needs a user of its own, which the root of a container is not."""
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=flags)
        try:
            yield started
        finally:
            started.close()


@contextmanager
def opened(browser: Browser, scheme: Any = "light", width: int = _WIDTH) -> Iterator[tuple[Page, list[str]]]:
    """A page of a fresh profile, and all that it complains about: errors, and what its policy forbids."""
    context = browser.new_context(viewport={"width": width, "height": _HEIGHT}, color_scheme=scheme)
    context.set_default_timeout(15_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page, complaints
    finally:
        context.close()


def log_in(page: Page, site: Site, key: str) -> None:
    page.goto(f"{site.url}/ui/")
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/ui/")


def axe_source() -> str:
    """The script itself, which a wheel carries."""
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


def violations(page: Page, source: str) -> list[str]:
    """What axe finds against WCAG 2.2 AA and its own best practices, in a line each."""
    page.evaluate(source)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = page.evaluate("(tags) => axe.run(document, {runOnly: tags})", tags)
    return [
        f"{each['id']}: {each['help']}: {node['html'][:160]}" for each in found["violations"] for node in each["nodes"]
    ]
