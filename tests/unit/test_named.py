"""The twelve names as values: each is one expression that travels, prints itself and says how it fails.

What each of them does when it is put to the test is shown in `tests/stores/test_named_*.py`, on every store.
"""

from msgspec.structs import replace

from forebay.core.instant import minutes
from forebay.core.named import NAMED
from forebay.core.policy import KeepFor
from forebay.core.spec import QueueSpec


def test_every_name_travels_prints_and_says_how_it_fails() -> None:
    assert len(NAMED) == 12
    vectors = set()
    for name, named in NAMED.items():
        spec = named(name)
        assert QueueSpec.from_json(spec.to_json()) == spec
        assert spec.vector().startswith(f"{name} = {{")
        assert spec.vector().count(", ") >= 4
        assert named.fails_by
        assert named.contained_by
        assert named.test
        assert spec.commit_point
        vectors.add(named("q").vector())
    assert len(vectors) == 12, "they differ"


def test_a_name_is_a_shortcut_and_every_field_may_be_changed() -> None:
    spec = replace(NAMED["work"]("q"), retention=KeepFor(minutes(5)))
    assert "keep 5 min" in spec.vector()
