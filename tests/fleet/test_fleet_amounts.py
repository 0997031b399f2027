# SPDX-License-Identifier: Apache-2.0
"""Amounts are read with their units, and units of another kind are refused."""

from __future__ import annotations

import pytest

from trnlab.errors import UsageError
from trnlab.fleet.quantities import COUNT, MONEY, POWER, TIME, TOKENS, parse, parse_range

GOOD = [
    ("2T", TOKENS, 2e12),
    ("15.6T", TOKENS, 15.6e12),
    ("1e9", TOKENS, 1e9),
    ("300 B", TOKENS, 3e11),
    ("1_000", TOKENS, 1e3),
    ("30d", TIME, 30 * 86400.0),
    ("12h", TIME, 43200.0),
    ("90min", TIME, 5400.0),
    ("200ms", TIME, 0.2),
    ("$1M", MONEY, 1e6),
    ("250k", MONEY, 2.5e5),
    ("2GW", POWER, 2e9),
    ("500k", COUNT, 5e5),
]
BAD = [
    ("2GW", TOKENS),
    ("30d", TOKENS),
    ("$5", TOKENS),
    ("2T", TIME),
    ("30", TIME),
    ("1M", POWER),
    ("0", TOKENS),
    ("-1", TOKENS),
    ("", TOKENS),
    ("T", TOKENS),
    ("1..2", TOKENS),
    ("nan", TOKENS),
    ("30D", TIME),
    ("5m", TIME),
]


@pytest.mark.parametrize(("text", "kind", "value"), GOOD)
def test_amounts(text, kind, value):
    assert parse(text, kind, "--x") == value


@pytest.mark.parametrize(("text", "kind"), BAD)
def test_other_units_are_refused(text, kind):
    with pytest.raises(UsageError, match="TRN173"):
        parse(text, kind, "--x")


def test_ranges():
    assert parse_range("16..256", "--x") == (16, 256)
    assert parse_range("64", "--x") == (64, 64)
    for text in ("0", "4..2", "a..b", "1...4", ""):
        with pytest.raises(UsageError, match="TRN173: --x takes a number, or a range of them"):
            parse_range(text, "--x")
