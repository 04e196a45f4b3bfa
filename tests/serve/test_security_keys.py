"""API keys: how they are made and kept, who gets in, and how soon a revoked one is out, in every process (S2, S4)."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli import main
from forebay.core.errors import Invalid, StoreFailed
from forebay.core.instant import seconds
from forebay.serve.actor import Actor, Role
from forebay.serve.problems import Problem
from forebay.serve.security.auth import Authenticator
from forebay.serve.security.keys import (
    KEYS_LOG,
    TRUSTED_SECONDS,
    Created,
    KeyFollower,
    Keyring,
    Revoked,
    ensure_log,
    mint,
    read_entries,
    write_entries,
)
from forebay.store.open import open_store
from forebay.store.protocol import Store
from tests.serve.site import Site
from tests.waiting import eventually

SOON = 5.0


def test_a_key_is_long_random_and_kept_as_a_digest(store: Store) -> None:
    made = [mint("ada", [Role.ADMIN], 1) for _ in range(200)]
    assert len({text for _, text in made}) == len({key.id for key, _ in made}) == 200
    key, text = made[0]
    assert re.fullmatch(r"fb_[0-9a-f]{12}_[A-Za-z0-9_-]{32}", text)  # 32 signs of 6 bits each: 192 bits
    write_entries(store, [Created(key, "test")])
    kept = b"".join(entry.body for entry in store.read(KEYS_LOG, 0, -1, 10))
    secret = text.split("_", 2)[2].encode()
    assert key.digest.encode() in kept
    assert secret not in kept


@given(st.data())
def test_only_the_very_text_is_the_key(data: st.DataObject) -> None:
    key, text = mint("ada", [Role.VIEWER], 1)
    ring = Keyring([key])
    place = data.draw(st.integers(0, len(text) - 1))
    sign = data.draw(st.characters(codec="utf-8"))
    changed = text[:place] + sign + text[place + 1 :]
    assert (ring.find(changed, 5) is not None) == (changed == text)
    assert ring.find(text[:place], 5) is None
    assert ring.find(text + sign, 5) is None


def test_revoked_and_expired_keys_are_nobodys() -> None:
    key, text = mint("ada", [Role.VIEWER], 1, expires_at=100)
    ring = Keyring([key])
    assert ring.find(text, 99) == key
    assert ring.find(text, 100) is None
    assert ring.find_valid(key.id, 100) is None
    ring.apply([Revoked(key.id, "ada")])
    assert ring.find(text, 99) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"roles": []},
        {"roles": [Role.WORKER], "tenant": "acme"},
        {"roles": [Role.ADMIN], "tenant": "acme"},
        {"roles": [Role.VIEWER], "queues": ()},
        {"roles": [Role.VIEWER], "queues": ("a b",)},
        {"roles": [Role.VIEWER], "queues": ("a[b]",)},
        {"roles": [Role.VIEWER], "tenant": "a/b"},
        {"roles": [Role.VIEWER], "rate": 0},
        {"roles": [Role.VIEWER], "quota_day": -1},
        {"roles": [Role.VIEWER], "name": ""},
    ],
)
def test_bad_keys_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        mint(**{"name": "ada", "created_at": 1, **bad})


def test_actors_reach_their_queues_and_never_forebays_own() -> None:
    actor = Actor("a", frozenset({Role.PRODUCER}), ("mail", "media.*"), "acme")
    assert [actor.reaches(name) for name in ("mail", "mail2", "media.x", "media")] == [True, False, True, False]
    assert not Actor("root", frozenset({Role.ADMIN})).reaches("forebay.keys")
    assert (actor.sees("mail", "acme"), actor.sees("mail", None), actor.sees("mail", "other")) == (True, False, False)
    assert (actor.stamped(None), actor.stamped("acme")) == ("acme", "acme")
    with pytest.raises(Invalid):
        actor.stamped("other")


def test_the_log_is_followed_and_what_is_not_understood_is_passed_over(store: Store) -> None:
    ring = Keyring()
    follower = KeyFollower(store, ring)
    follower.step()
    first, text = mint("ada", [Role.VIEWER], 1)
    other = KeyFollower(store, Keyring())
    other.create(first, "ada")
    store.append(KEYS_LOG, [b'{"type":"renamed","id":"x"}', b"[1]"])
    second, _ = mint("bob", [Role.VIEWER], 1)
    other.create(second, "ada")
    follower.step()
    assert ring.find(text, 5) == first
    assert len(ring) == 2
    assert other.revoke(first.id, "ada")
    assert not other.revoke(first.id, "ada")
    follower.step()
    assert ring.find(text, 5) is None
    assert read_entries(store, -1)[1] == 4


def test_keys_are_trusted_for_a_while_without_the_store_and_then_no_more(store: Store) -> None:
    now = [100.0]
    ring = Keyring()
    follower = KeyFollower(store, ring, lambda: now[0])
    key, text = mint("ada", [Role.VIEWER], 1)
    follower.create(key, "ada")
    authenticator = Authenticator(ring, follower=follower)
    store.close()
    now[0] += TRUSTED_SECONDS - 0.1
    with pytest.raises(Exception, match="closed"):
        follower.step()
    assert asyncio.run(authenticator.verify(text)) is not None
    now[0] += 0.2
    with pytest.raises(Problem) as refused:
        asyncio.run(authenticator.verify(text))
    assert refused.value.status == 503
    assert "Retry-After" in refused.value.headers


def test_no_browser_gets_in_without_a_key_and_it_logs_in_once(site: Site) -> None:
    good = site.key(Role.VIEWER)
    wrong: list[dict[str, str] | list[tuple[str, str]]] = [
        {},
        {"Authorization": good},
        {"Authorization": f"Basic {good}"},
        {"Authorization": f"Bearer {good[:-1]}"},
        {"Authorization": f"Bearer {good} {good}"},
        {"Authorization": "Bearer fb_000000000000_" + "x" * 32},
        {"X-Api-Key": good},
        [("Authorization", f"Bearer {good}"), ("Authorization", f"Bearer {good}")],
    ]
    keyless = site.with_key(None)
    for headers in wrong:
        answer = keyless.get("/queues", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"
        assert good not in answer.text
    assert keyless.get(f"/queues?token={good}").status_code == 401
    assert site.with_key(good).get("/queues").status_code == 200


def test_a_key_made_and_revoked_at_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert main(["keys", "create", "--role", "producer", "--queues", "mail, media.*", "--store", url, "--json"]) == 0
    made = msgspec.json.decode(capsys.readouterr().out)
    assert main(["keys", "ls", "--store", url]) == 0
    listed = capsys.readouterr().out
    assert made["id"] in listed
    assert "mail, media.*" in listed
    assert made["key"].split("_", 2)[2] not in listed
    assert main(["keys", "revoke", made["id"], "nobody", "--store", url]) == 1
    assert "is revoked" in capsys.readouterr().out
    assert main(["keys", "ls", "--store", url, "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["keys", "create", "--role", "worker", "--tenant", "acme", "--store", url]) == 2


@contextmanager
def served(url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`forebay serve` as a process of its own."""
    command = [sys.executable, "-m", "forebay", "serve", "--store", url, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(20) == 0


def place_of(process: "subprocess.Popen[bytes]") -> str:
    """Where it listens, once it does."""
    assert process.stdout is not None
    return str(msgspec.json.decode(process.stdout.readline())["url"])


def until(client: httpx.Client, status: int) -> None:
    eventually(lambda: client.get("/queues").status_code == status, f"status {status}", SOON)


def test_a_revoked_key_is_out_in_every_process_within_five_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with ExitStack() as stack:
        servers = [stack.enter_context(served(url)) for _ in range(2)]
        assert main(["keys", "create", "--role", "viewer", "--store", url, "--json"]) == 0
        made = msgspec.json.decode(capsys.readouterr().out)
        headers = {"Authorization": f"Bearer {made['key']}"}
        clients = [
            stack.enter_context(httpx.Client(base_url=place, headers=headers, trust_env=False))
            for place in map(place_of, servers)
        ]
        for client in clients:
            until(client, 200)
        assert main(["keys", "revoke", made["id"], "--store", url]) == 0
        for client in clients:
            until(client, 401)


def test_a_store_that_fails_while_keys_are_read_fails_every_caller() -> None:
    class UnreachableStore:
        def specs(self) -> list[Any]:
            raise StoreFailed("store", "away")

    with pytest.raises(StoreFailed):
        Authenticator.of(UnreachableStore())  # type: ignore[arg-type]


def test_making_the_log_twice_is_making_it_once() -> None:
    store = open_store("memory://")
    for _ in range(2):
        ensure_log(store, KEYS_LOG)
    assert [spec.name for spec in store.specs()] == [KEYS_LOG]
    store.claim([], "nobody", seconds(1))
    store.close()


@pytest.mark.nightly
def test_a_wrong_secret_takes_as_long_as_an_unknown_key() -> None:
    """S4: by the medians of 10,000 tries each, taken in turns."""
    key, text = mint("ada", [Role.VIEWER], 1)
    ring = Keyring([key])
    wrong = {
        "secret": text[:-4] + "AAAA",
        "first sign": text[:16] + "A" + text[17:],
        "id": "fb_000000000000" + text[15:],
    }
    took: dict[str, list[float]] = {name: [] for name in wrong}
    for _ in range(10_000):
        for name, shown in wrong.items():
            began = perf_counter()
            assert ring.find(shown, 5) is None
            took[name].append(perf_counter() - began)
    medians = [median(times) for times in took.values()]
    assert max(medians) < 1.25 * min(medians)
