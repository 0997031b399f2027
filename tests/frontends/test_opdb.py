# SPDX-License-Identifier: Apache-2.0
"""The part of PyTorch's operator database that CI runs, on all three engines, and the table in docs/operators.md.

All of it: `make opdb`.
"""

import pytest
from opdb_sample import OPERATORS

from tools.opdb import table
from tools.opdb.compare import difference, ulps
from tools.opdb.verdicts import FAILED, PASSED, REFUSED
from tools.opdb.worker import run
from trnlab import chips
from trnlab.runtime import session

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

MODES = ["compiled", "interpreter", "eager"]


@pytest.fixture(scope="module")
def known():
    return table.read_page(table.PAGE.read_text())


def records(op, dtype, modes=MODES, samples=2):
    job = {"op": op, "dtype": dtype, "samples": samples, "reference": False, "modes": modes, "seconds": 60}
    with session.activate(session.Session(chips.target("trn1"), "fp32")):
        return run(job)


@pytest.mark.parametrize("op", OPERATORS)
def test_operator(op, known):
    """Nothing is wrong, nothing crashes, and the table says what happens now."""
    for dtype in OPERATORS[op]:
        found = records(op, dtype)
        wrong = [r for r in found if r.verdict.kind == FAILED]
        assert not wrong, "\n".join(f"{r.mode} {r.part} {r.dtype} {r.what}: {r.verdict}" for r in wrong)
        assert all(r.verdict.code.startswith("TRN") for r in found if r.verdict.kind == REFUSED)
        (cell,) = table.cells(found).values()
        if (op, dtype) in known:  # two samples see less than all of them: they may not see what is refused
            seen, listed = table.kind_of(cell), table.kind_of(known[op, dtype])
            assert seen == listed or listed == "run in part", (op, dtype, cell, known[op, dtype])


def test_formats_that_the_chip_lacks_are_refused_by_code():
    assert {r.verdict.code for r in records("mul", "float64", ["compiled"], 1)} == {"TRN212"}


def test_both_parts_of_complex_numbers_are_compared():
    expected = torch.tensor([1 + 2j, 3 - 1e-3j])
    assert difference(expected.clone(), expected, None, (0.0, 0.0)) is None
    assert "first at 3" in difference(torch.tensor([1 + 2j, 3 - 2e-3j]), expected, None, (0.0, 0.0))
    assert ulps(expected + 1e-7j, expected) > 0


def test_the_comparison_is_element_by_element():
    """A small element that is wrong is found beside a large one that is right."""
    expected = torch.tensor([1e6, 1e-3])
    assert difference(torch.tensor([1e6, 1e-3]), expected, None, (0.0, 0.0)) is None
    assert "first at 1" in difference(torch.tensor([1e6, 2e-3]), expected, None, (0.0, 0.0))
    assert "dtype" in difference(expected.double(), expected, None, (0.0, 0.0))
    assert "shape" in difference(expected[:1], expected, None, (0.0, 0.0))
    assert difference(torch.tensor([3]), torch.tensor([4]), None, (0.0, 0.0)) is not None
    assert difference(torch.tensor([float("nan")]), torch.tensor([1.0]), None, (0.0, 0.0)) is not None


def test_distances_are_counted_in_units_in_the_last_place():
    one = torch.tensor([1.0, 0.0, -1.0])
    assert ulps(one, one) == 0
    assert ulps(torch.nextafter(one, one + 1), one) == 1
    assert ulps(torch.tensor([-0.0]), torch.tensor([0.0])) == 0


def test_verdicts_survive_json():
    for r in records("neg", "int32", ["interpreter"], 1):
        assert r.verdict.kind == PASSED
        assert type(r).from_json(r.to_json()) == r
