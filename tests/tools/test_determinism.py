# SPDX-License-Identifier: Apache-2.0
"""The same bits, picoseconds and keys whatever the folder, the hash seed and the number of threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.determinism.__main__ import Circumstances, differences, drawn, run

CIRCUMSTANCES = [
    Circumstances(1, 1, 0, True),
    Circumstances(4_000_000_000, 2, 2, False),
    Circumstances(77, 4, 1, True),
    Circumstances(78, 1, 0, False),
]


@pytest.mark.torch
@pytest.mark.parametrize("chosen", [CIRCUMSTANCES[:2], pytest.param(CIRCUMSTANCES, marks=pytest.mark.slow)], ids=len)
def test_runs_under_other_circumstances_are_the_same(tmp_path: Path, chosen: list[Circumstances]) -> None:
    """The last of four finds its programs in a cache."""
    first, *others = (run(tmp_path, number, how) for number, how in enumerate(chosen))
    assert len(first["keys"].split()) == 2
    assert first["printed"].count("loss 0x") == 4
    for other in others:
        assert differences(first, other) == []


def test_what_differs_is_named() -> None:
    assert differences({"keys": "a", "printed": "1"}, {"keys": "a", "printed": "2"}) == ["printed"]
    assert differences({"keys": "a"}, {"keys": "a", "timeline a": "0"}) == ["timeline a"]


def test_circumstances_are_drawn_from_the_seed() -> None:
    assert drawn(1, 5) == drawn(1, 5)
    assert drawn(1, 5) != drawn(2, 5)
    assert {how.threads for how in drawn(0, 50)} == {1, 2, 4}
