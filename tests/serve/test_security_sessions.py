"""Sessions of the dashboard: cookies, their end, one-time tokens, and headers that make browsers careful (S5, S6)."""

import asyncio
import re

import httpx
import pytest

from forebay.serve.actor import Actor, Role
from forebay.serve.security.auth import Authenticator
from forebay.serve.security.keys import KeyFollower, Keyring, mint
from forebay.serve.security.sessions import (
    IDLE_SECONDS,
    MAX_AGE_SECONDS,
    MAX_SESSIONS,
    ONE_TIME_SECONDS,
    Sessions,
)
from forebay.store.protocol import Store
from tests.serve.site import Site

DEV = Actor("dev", frozenset({Role.ADMIN}))


class SessionFixture:
    """An authenticator, its sessions and a manual clock."""

    def __init__(self, store: Store) -> None:
        self.now = 1_000.0
        ring = Keyring()
        self.follower = KeyFollower(store, ring)
        self.key, self.text = mint("ada", [Role.OPERATOR], store.now())
        self.follower.create(self.key, "test")
        self.sessions = Sessions(Authenticator(ring, follower=self.follower), lambda: self.now)

    def open(self, shown: str | None = None) -> str | None:
        return asyncio.run(self.sessions.open(shown or self.text))


@pytest.fixture
def fixture(store: Store) -> SessionFixture:
    return SessionFixture(store)


def test_a_session_is_the_key_that_opened_it(fixture: SessionFixture) -> None:
    cookie = fixture.open()
    assert cookie is not None
    assert len(cookie) >= 40
    assert fixture.key.digest not in cookie
    session = fixture.sessions.find(cookie)
    assert session is not None
    assert session.credentials.actor == fixture.key.actor()
    assert fixture.sessions.find(cookie[:-1]) is None
    fixture.sessions.close(cookie)
    assert fixture.sessions.find(cookie) is None
    assert fixture.open("fb_wrong") is None


def test_a_session_ends_when_it_is_idle_or_old(fixture: SessionFixture) -> None:
    cookie = fixture.open() or ""
    fixture.now += IDLE_SECONDS - 1
    assert fixture.sessions.find(cookie) is not None
    fixture.now += IDLE_SECONDS + 1
    assert fixture.sessions.find(cookie) is None
    cookie = fixture.open() or ""
    for _ in range(int(MAX_AGE_SECONDS / (IDLE_SECONDS / 2)) - 1):
        fixture.now += IDLE_SECONDS / 2
        assert fixture.sessions.find(cookie) is not None
    fixture.now += IDLE_SECONDS / 2 + 1
    assert fixture.sessions.find(cookie) is None


def test_a_session_ends_with_its_key(fixture: SessionFixture) -> None:
    cookie = fixture.open() or ""
    fixture.follower.revoke(fixture.key.id, "test")
    assert fixture.sessions.find(cookie) is None
    assert len(fixture.sessions) == 0


def test_a_one_time_token_opens_once_and_not_for_long(fixture: SessionFixture) -> None:
    token = fixture.sessions.one_time(DEV)
    cookie = fixture.open(token)
    assert cookie is not None
    session = fixture.sessions.find(cookie)
    assert session is not None
    assert session.credentials.actor == DEV
    assert fixture.open(token) is None
    late = fixture.sessions.one_time(DEV)
    fixture.now += ONE_TIME_SECONDS
    assert fixture.open(late) is None


def test_sessions_are_bounded_and_the_longest_silent_one_goes(fixture: SessionFixture) -> None:
    first, second = fixture.open() or "", fixture.open() or ""
    assert fixture.sessions.find(first) is not None
    for _ in range(MAX_SESSIONS - 1):
        fixture.open()
    assert len(fixture.sessions) == MAX_SESSIONS
    assert fixture.sessions.find(first) is not None
    assert fixture.sessions.find(second) is None


def test_the_cookie_is_for_this_browser_alone(site: Site) -> None:
    answer = site.with_key(None, {"Origin": site.url}).post("/ui/login", data={"key": site.key(Role.VIEWER)})
    (cookie,) = answer.headers.get_list("set-cookie")
    assert re.match(r"forebay-\d+=[\w-]{40,}; ", cookie)
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert "fb_" not in cookie


def test_logging_in_from_another_site_is_refused(site: Site) -> None:
    key = site.key(Role.VIEWER)
    for origin in ("http://evil.example", "null", site.url + "0"):
        assert site.with_key(None, {"Origin": origin}).post("/ui/login", data={"key": key}).status_code == 403
    assert site.with_key(None).post("/ui/login", data={"key": key}).status_code == 403


def test_a_one_time_link_opens_the_dashboard_once(site: Site) -> None:
    token = site.context.authenticator.sessions.one_time(DEV)
    client = site.with_key(None)
    assert client.get(f"/ui/login?token={token}").headers["location"] == "/ui/"
    assert client.get("/ui/").status_code == 200
    assert not site.with_key(None).get(f"/ui/login?token={token}").cookies
    key = site.key(Role.ADMIN)
    assert not site.with_key(None).get(f"/ui/login?token={key}").cookies


def test_logging_out_ends_the_session(site: Site) -> None:
    client = site.with_key(None, {"Origin": site.url})
    cookie = dict(client.post("/ui/login", data={"key": site.key(Role.VIEWER)}).cookies)
    (value,) = cookie.values()
    session = site.context.authenticator.sessions.find(value)
    assert client.post("/ui/logout", headers={"X-CSRF-Token": session.csrf}).status_code == 303
    with httpx.Client(base_url=site.url, cookies=cookie, trust_env=False) as again:
        assert again.get("/ui/").status_code == 303


def test_every_answer_has_the_security_headers(site: Site) -> None:
    client = site.client(Role.VIEWER)
    for path in ("/queues", "/health", "/ui/login", "/ui/", "/nowhere", "/openapi.json"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "strict-transport-security" not in headers
        assert "server" not in headers
