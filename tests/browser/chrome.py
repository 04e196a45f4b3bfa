"""A real browser: the Chromium of this machine, or the one that `make servers` unpacked; and axe for its pages.

`FOREBAY_CHROMIUM` names another one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

from playwright.sync_api import Browser, Page

from forebay_proof.lab.screenshot import BrowserMissing, browser, chromium
from tests.serve.site import Site

_WIDTH, _HEIGHT = 1360, 900

__all__ = ["BrowserMissing", "axe_source", "browser", "chromium", "log_in", "opened", "violations"]


@contextmanager
def opened(browser: Browser, scheme: Any = "light", width: int = _WIDTH) -> Iterator[tuple[Page, list[str]]]:
    """A page of a fresh profile, and all that it complains about: errors, and what its policy forbids."""
    context = browser.new_context(viewport={"width": width, "height": _HEIGHT}, color_scheme=scheme)
    context.set_default_timeout(60_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda output: complaints.append(output.text) if output.type in ("error", "warning") else None)
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
