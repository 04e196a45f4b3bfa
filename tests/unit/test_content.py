"""Conditions on what jobs carry: what is a condition, what it finds, and `forebay ls` with it."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forebay import Draft, Invalid, open_store
from forebay.cli import inspect, main
from forebay.core.content import MAX_CONDITIONS, holds, parse_condition
from forebay.core.limits import CONTENT_SCAN
from forebay.core.payload import encode_payload
from forebay.store.protocol import Query


@pytest.mark.parametrize(
    ("payload", "path", "text", "found"),
    [
        ({"a": {"b": "x"}}, "a.b", "x", True),
        ({"a": {"b": "x"}}, "a.b", "y", False),
        ({"a": {"b": "x"}}, "a", "x", False),
        ({"a": {"b": "x"}}, "a.b.c", "x", False),
        ({"a": [1, 2.5, None, True]}, "a.0", "1", True),
        ({"a": [1, 2.5, None, True]}, "a.1", "2.5", True),
        ({"a": [1, 2.5, None, True]}, "a.2", "null", True),
        ({"a": [1, 2.5, None, True]}, "a.3", "true", True),
        ({"a": [1]}, "a.1", "1", False),
        ({"a": [1]}, "a.-1", "1", False),
        ({"a": [1]}, "a.²", "1", False),
        ({"a": [1]}, "a." + "9" * 30, "1", False),
        ({"a": {"0": "x"}}, "a.0", "x", True),
        ({"a": []}, "a", "[]", False),
        ({"a": ""}, "a", "", True),
        ({"a": "null"}, "a", "null", True),
        ("x", "a", "x", False),
    ],
)
def test_a_condition_means_one_value(payload: Any, path: str, text: str, found: bool) -> None:
    assert holds(None, encode_payload(payload), (), ((path, text),)) is found


def test_every_condition_must_hold() -> None:
    body = encode_payload({"a": 1, "b": 2})
    assert holds({"m": "x"}, body, (("m", "x"),), (("a", "1"), ("b", "2")))
    assert not holds({"m": "x"}, body, (("m", "x"),), (("a", "1"), ("b", "3")))
    assert not holds({"m": "x"}, body, (("m", "y"),), (("a", "1"),))
    assert not holds(None, body, (("m", "x"),), ())


def test_mistakes_are_refused() -> None:
    assert parse_condition("--meta", "a=b=c") == ("a", "b=c")
    assert parse_condition("--meta", "a=") == ("a", "")
    for text in ("a", "=b", ""):
        with pytest.raises(Invalid, match="--meta NAME=VALUE"):
            parse_condition("--meta", text)
    wrong: list[Any] = [[("a", "b")], (("a",),), (("a", 1),), (("", "b"),), (("a", "b" * 257),), (("a", "\0"),)]
    for given in (*wrong, (("a", "b"),) * (MAX_CONDITIONS + 1)):
        with pytest.raises(Invalid, match="payload"):
            Query(payload=given)
        with pytest.raises(Invalid, match="meta"):
            Query(meta=given)


def test_ls_finds_by_meta_and_payload_and_says_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    monkeypatch.setattr(inspect, "MAX_SCAN", 2 * CONTENT_SCAN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with closing(open_store("sqlite:///forebay.db")) as store:
        store.enqueue([Draft("a", {"customer": {"id": n}}, meta={"trace": f"t{n % 2}"}) for n in range(4)])
        store.enqueue([Draft("a")] * 1_000)
        last = store.enqueue([Draft("a", {"customer": {"id": 3}})])[0].id

    def ls(*words: str) -> tuple[list[str], str]:
        assert main(["ls", *words]) == 0
        shown = capsys.readouterr()
        return [line.split()[0] for line in shown.out.splitlines()[1:]], shown.err

    assert ls("--payload", "customer.id=2") == (["3"], "the search stopped at id 1000: continue with --after 1000\n")
    assert ls("--payload", "customer.id=3", "--after", "4") == (
        [],
        "no jobs match\nthe search stopped at id 1004: continue with --after 1004\n",
    )
    assert ls("--payload", "customer.id=3", "--after", "1000") == ([str(last)], "")
    assert ls("--meta", "trace=t1", "--limit", "1")[0] == ["2"]
    assert ls("--meta", "trace=t1", "--payload", "customer.id=3")[0] == ["4"]
    assert main(["ls", "--payload", "x"]) == 2
    assert main(["ls", "--payload", "x=1", "--oldest"]) == 2
