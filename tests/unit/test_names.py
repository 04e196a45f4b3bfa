"""Names and identifying texts: what passes, what is refused, and that a refusal stays short and printable."""

import enum
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Invalid
from forebay.core.names import check_name, check_text, is_name

ALPHABET = string.ascii_letters + string.digits + "_.:-"


@given(st.text(ALPHABET, min_size=1, max_size=128))
def test_names_of_the_alphabet_pass(name: str) -> None:
    assert check_name("queue", name) == name


@given(st.text())
def test_every_other_text_is_no_name(text: str) -> None:
    assert is_name(text) == (1 <= len(text) <= 128 and set(text) <= set(ALPHABET))


def test_the_length_is_exact() -> None:
    assert check_name("queue", "n" * 128)
    with pytest.raises(Invalid, match="1 to 128"):
        check_name("queue", "n" * 129)


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "a\n", "\na", "a\0", "é", "ⅷ", "٣", "a\ud800", "a'b", 'a"', "a;b", "../x", "a*", "{a}"],
)
def test_what_is_unsafe_somewhere_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_name("queue", name)
    assert refused.value.field == "queue"
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", [None, 5, 1.5, b"bytes", ["a"], {"a": 1}, object(), True])
def test_what_is_not_a_string_is_refused(name: object) -> None:
    with pytest.raises(Invalid, match="is not a name"):
        check_name("queue", name)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        check_text("key", name)  # type: ignore[arg-type]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=256))
def test_free_text_passes(text: str) -> None:
    assert check_text("key", text) == text


def test_the_length_of_free_text_is_exact() -> None:
    assert check_text("key", "é" * 256)
    with pytest.raises(Invalid, match="1 to 256"):
        check_text("key", "é" * 257)


@pytest.mark.parametrize("text", ["", "\0", "a\0b", "\ud800", "a\udfff"])
def test_free_text_that_a_store_cannot_keep_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_text("key", text)
    assert refused.value.field == "key"
    assert is_printable_utf8(str(refused.value))


def is_printable_utf8(text: str) -> bool:
    return text.isprintable() and bool(text.encode("utf-8"))


def test_a_refusal_stays_short() -> None:
    for check in (check_name, check_text):
        with pytest.raises(Invalid) as refused:
            check("field", "x " * 100_000)
        assert len(str(refused.value)) < 300


class Kind(enum.StrEnum):
    EMAIL = "email"


def test_a_string_that_is_more_than_a_string_becomes_a_plain_one() -> None:
    for checked in (check_name("kind", Kind.EMAIL), check_text("key", Kind.EMAIL)):
        assert (checked, type(checked)) == ("email", str)
