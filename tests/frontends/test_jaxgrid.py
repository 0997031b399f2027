# SPDX-License-Identifier: Apache-2.0
"""A sample of the grid of JAX' functions, and what its page says of them. All of it: `make jaxgrid`."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")
from tools.jaxgrid.__main__ import grid
from tools.jaxgrid.judge import CLOSE, EXACT, REFUSED, WRONG, compared, judge
from tools.jaxgrid.table import COLUMNS, PAGE
from trnlab import chips
from trnlab.runtime import session

EVERY = 150  # case
CASES = list(grid())
SAMPLE = [*CASES[::EVERY], *(c for c in CASES if c.name == "jnp.nancumsum" and c.dtype == "bfloat16")]


def cells():
    """What the page says, by function and format."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    found = {}
    for name, *said in rows:
        said[-1] = said[-1].removesuffix(" |")
        found |= {(name.removeprefix("| `").removesuffix("`"), column): cell for column, cell in zip(COLUMNS, said)}
    return found


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: f"{case.name} {case.dtype}")
def test_a_sample_is_as_the_page_says(case):
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        verdict = judge(case)
    assert verdict.kind in (EXACT, CLOSE, REFUSED), verdict
    said = cells()[case.name, case.dtype]
    # XLA rounds otherwise on other processors: the page says the farther of what was seen.
    seen = {EXACT, CLOSE} if verdict.kind == EXACT else {verdict.about if verdict.kind == REFUSED else verdict.kind}
    assert said in seen


def test_the_page_has_every_case_and_nothing_wrong():
    said = cells()
    for case in CASES:
        assert (case.name, case.dtype) in said or case.name == "jnp.choose", case  # JAX refuses to trace that one
    assert not [cell for cell in said.values() if cell.isupper() and not cell.startswith("TRN")]


def test_what_is_wrong_is_called_so():
    """Another number, another shape, a NaN where there is none; the sign of a zero is no matter."""
    x = np.array([1.0, -2.0, np.nan, 0.0], np.float32)
    assert compared([x * np.float32(-1) * -1], [x])[0] == EXACT
    assert compared([x * np.float32(1.00005)], [x])[0] == CLOSE
    for other in (x * np.float32(1.001), np.nan_to_num(x), x + np.nan, x[:3]):
        assert compared([other], [x])[0] == WRONG
    assert compared([np.array([3], np.int32)], [np.array([4], np.int32)])[0] == WRONG
