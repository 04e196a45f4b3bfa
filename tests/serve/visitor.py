"""A browser without a script, for tests of pages: logs in, keeps the cookie, finds the token in forms, sends them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser

import httpx

from forebay.serve.actor import Role
from tests.serve.site import Site

_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())


class Markup(HTMLParser):
    """A page taken apart: its elements with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.comments = 0
        self.feed(page)
        self.close()

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements and the names of their attributes, in order: what no text may change."""
        return [(tag, tuple(name for name, _ in given)) for tag, given in self.elements]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def values(self, name: str) -> list[str]:
        return [value or "" for _, given in self.elements for own, value in given if own == name]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments += 1


class Visitor:
    """A browser session with a key, on the dashboard of a site."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def get(self, path: str, status: int = 200) -> Markup:
        answer = self.client.get(path)
        assert answer.status_code == status, (path, answer.status_code, answer.text[-400:])
        assert answer.headers["content-type"].startswith("text/html"), path
        page = Markup(answer.text)
        assert page.open == [], f"{path} leaves {page.open} open"
        return page

    def csrf(self) -> str:
        page = self.client.get("/ui/jobs").text
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found, "no form with a token"
        return found[1]

    def post(self, path: str, **fields: object) -> httpx.Response:
        """As a form of a page would."""
        return self.client.post(
            path, data={"csrf": self.csrf(), **{name: str(value) for name, value in fields.items()}}
        )

    def done(self, path: str, **fields: object) -> str:
        """Post and follow; where it led."""
        answer = self.post(path, **fields)
        assert answer.status_code == 303, (answer.status_code, answer.text[-600:])
        return answer.headers["location"]


@contextmanager
def visitor(site: Site, *roles: Role, key: str | None = None, **limits: object) -> Iterator[Visitor]:
    with httpx.Client(base_url=site.url, headers={"Origin": site.url}, timeout=30, trust_env=False) as client:
        answer = client.post("/ui/login", data={"key": key or site.key(*roles, **limits)})
        assert answer.status_code == 303, answer.text[-300:]
        yield Visitor(client)
