"""A vault: what is sealed says nothing, opens with its key alone, and is still the same job when it comes again."""

import os
from base64 import b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Invalid, SealBroken
from forebay.core.job import Draft
from forebay.core.payload import digest
from forebay.vault import Vault, envelope_of

OLD, NEW = os.urandom(32), os.urandom(32)
CANARY = "4f1c-the-canary-9a2b"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("abc\u00e4\u6f22", max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("xyz$", max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_whatever_is_sealed_comes_back(payload: object) -> None:
    vault = Vault({"a": NEW})
    body = msgspec.json.encode(payload)
    sealed = vault.seal("k", body)
    assert envelope_of(sealed) is not None
    assert vault.open("k", sealed) == body
    assert vault.seal("k", body) != sealed


def test_an_envelope_says_nothing_and_belongs_to_its_kind_and_key() -> None:
    vault = Vault({"a": NEW})
    body = msgspec.json.encode({"card": CANARY})
    sealed = vault.seal("pay", body)
    assert CANARY.encode() not in sealed
    assert vault.open("pay", sealed) == body
    with pytest.raises(SealBroken, match="cannot be opened"):
        vault.open("refund", sealed)
    with pytest.raises(SealBroken, match="no key 'a', only b"):
        Vault({"b": NEW}).open("pay", sealed)
    with pytest.raises(SealBroken, match="another key of that name"):
        Vault({"a": OLD}).open("pay", sealed)


def test_one_flipped_byte_anywhere_in_the_text_is_noticed() -> None:
    vault = Vault({"a": NEW})
    envelope = envelope_of(vault.seal("k", b'{"n":1}'))
    assert envelope is not None
    for field in ("nonce", "text"):
        for place in range(len(envelope[field]) - 2):
            text = envelope[field]
            changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
            with pytest.raises(SealBroken):
                vault.open("k", msgspec.json.encode({"$sealed": {**envelope, field: changed}}))


def test_the_mark_is_the_same_under_every_key_while_the_oldest_is_known() -> None:
    draft = Draft("k", {"n": 1, "m": 2}, key="order-7")
    turned = Draft("k", {"m": 2, "n": 1}, key="order-7")
    other = Draft("k", {"n": 2, "m": 2}, key="order-7")
    before, during = Vault({"old": OLD}), Vault({"new": NEW, "old": OLD})
    marks = [digest("k", vault.seal_draft(each).body) for vault in (before, during) for each in (draft, turned)]
    assert len(set(marks)) == 1
    assert digest("k", during.seal_draft(other).body) not in marks
    assert digest("k", during.seal_draft(Draft("k", {"n": 1, "m": 2}, key="order-8")).body) not in marks
    assert "same" not in (envelope_of(during.seal_draft(Draft("k", {"n": 1})).body) or {})


def test_keys_come_from_the_environment_and_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_VAULT_KEYS", f"new:{b64encode(NEW).decode()}, old:{b64encode(OLD).decode()}")
    vault = Vault.from_env()
    assert (envelope_of(vault.seal("k", b"[1]")) or {})["key"] == "new"
    for bad in ("", "a:!!", f"a:{b64encode(b'short').decode()}", f"no name:{b64encode(NEW).decode()}"):
        monkeypatch.setenv("FOREBAY_VAULT_KEYS", bad)
        with pytest.raises(Invalid):
            Vault.from_env()


def test_what_is_too_large_to_be_sealed_is_refused() -> None:
    with pytest.raises(Invalid, match="too many to seal"):
        Vault({"a": NEW}).seal_draft(Draft("k", "x" * 200_000))
