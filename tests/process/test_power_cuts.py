"""The power is cut under load, on a file system that drops what was not synced: `forebay power-cuts`, in small.

Loop devices need root, so these run at night, where that is given.
"""

import os
import shutil

import pytest

from forebay.core.errors import Invalid
from forebay_proof.evidence import happened
from forebay_proof.power_cuts import SUBJECTS, PowerCuts

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mkfs.ext4") is None, reason="loop devices need root"),
]


@pytest.mark.parametrize("kind", SUBJECTS)
def test_what_was_acknowledged_outlives_the_cut(kind: str) -> None:
    result = PowerCuts(kind, cuts=20).run(print)
    assert result.lost == []
    assert result.bit == result.cuts
    happened("cuts", result.bit)


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_server_that_does_not_sync_is_found_out(kind: str) -> None:
    assert PowerCuts(kind, cuts=3, relaxed=True).run(print).lost


def test_bad_input_is_refused() -> None:
    with pytest.raises(Invalid, match="cassandra"):
        PowerCuts("cassandra", 1)
    with pytest.raises(Invalid, match="less than 1"):
        PowerCuts("sqlite", 0)
