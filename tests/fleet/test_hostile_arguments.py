# SPDX-License-Identifier: Apache-2.0
"""What cannot be read is said before anything is searched for: in the words of an error, never a traceback."""

from __future__ import annotations

import pytest

from trnlab.cli.main import main
from trnlab.cli.planning import bakeoff as command
from trnlab.errors import UsageError
from trnlab.fleet import quantities
from trnlab.fleet.comparison import contenders as sides
from trnlab.fleet.planning import plan as planning
from trnlab.fleet.search.layout import NAMED, SHORT, pinned

PLAN = ["plan", "llama3-8b", "--tokens", "1T", "--target", "trn1.32xlarge"]
BAKEOFF = ["bakeoff", "llama3-8b", "--a", "trn1.32xlarge", "--b", "p5.48xlarge"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ([*PLAN, "--tokens", "1e999T"], "TRN173"),
        ([*PLAN, "--instances", "9" * 400], "TRN173"),
        ([*PLAN, "--instances", "1.." + "9" * 5000], "TRN173"),
        ([*PLAN, "--global-batch", "1e400"], "TRN173"),
        ([*PLAN, "--deadline", "1e400d"], "TRN173"),
        ([*PLAN, "--layout", "tp=8,tp=4"], "TRN177"),
        ([*PLAN, "--layout", "tp=8, tp=8"], "TRN177"),
        ([*BAKEOFF, "--b", "nosuch"], "TRN15"),
        ([*BAKEOFF, "--days", "-3"], "TRN173"),
        ([*BAKEOFF, "--days", "0"], "TRN173"),
        ([*BAKEOFF, "--days", "1e999"], "TRN173"),
        ([*BAKEOFF, "--epoch", "none"], "TRN173"),
        ([*BAKEOFF, "--batch", "0"], "TRN569"),
        ([*BAKEOFF, "--batch", "-4"], "TRN569"),
        ([*BAKEOFF, "--sequence", "-1"], "TRN569"),
        ([*BAKEOFF, "--porting", "-3"], "TRN173"),
        ([*BAKEOFF, "--porting", "3", "--day-rate", "x"], "TRN173"),
        ([*BAKEOFF, "--region", "nosuch"], "TRN159"),
        ([*PLAN, "--region", "nosuch"], "TRN159"),
    ],
    ids=lambda value: "_".join(value[-2:])[:30] if isinstance(value, list) else value,
)
def test_it_is_said_before_a_search(asked, code, monkeypatch, capsys):
    for module in (planning, sides, command):
        for name in ("plan", "of_neuron", "of_others", "search"):
            monkeypatch.setattr(module, name, None, raising=False)
    assert main(_joined(asked)) == 2
    assert code in capsys.readouterr().err


def _joined(words: list[str]) -> list[str]:
    """Options and their values as one word, so that a negative number is not read as an option."""
    found: list[str] = []
    for word in words:
        if found and found[-1].startswith("--") and "=" not in found[-1]:
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


@pytest.mark.parametrize("short", SHORT)
def test_no_part_of_a_layout_is_given_twice(short):
    value = NAMED.get(short, "1")[-1]
    assert pinned(f"{short}={value}")
    with pytest.raises(UsageError, match="TRN177"):
        pinned(f"{short}={value},{short}={value}")


@pytest.mark.parametrize("kind", [quantities.COUNT, quantities.TOKENS, quantities.TIME, quantities.MONEY])
@pytest.mark.parametrize("text", ["1e999", "-1", "0", "nan", "inf", "", "1 2"])
def test_amounts_are_positive_and_finite(kind, text):
    with pytest.raises(UsageError, match="TRN173") as caught:
        quantities.parse(text, kind, "--amount")
    assert "amount of count" not in str(caught.value)
