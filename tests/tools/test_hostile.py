# SPDX-License-Identifier: Apache-2.0
"""Operators on hostile values, shapes and layouts, on the simulated chip beside PyTorch: a drawn part of what
`python -m tools.hostile` runs, and that the comparison sees what it is there to see."""

import pytest
import torch

from tools.hostile.cases import Case, case
from tools.hostile.judge import AGREES, CRASHED, REFUSED, WRONG, difference, judge
from tools.hostile.operators import ALONG, ELEMENTWISE, Operator
from tools.hostile.values import Look
from trnlab import chips
from trnlab.frontends.common.engine import DeviceEngine
from trnlab.runtime import session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

TOGETHER = 30


def judged(cases):
    with session.activate(session.Session(chips.target("trn1"), "fp32")):
        return judge(cases, DeviceEngine())


def assert_all_agree(cases):
    bad = [f"{v.kind}: {v.label}: {v.about}" for v in judged(cases) if v.kind != AGREES]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("first", [50_000, 51_000, 52_000, 53_000])
def test_drawn_cases_agree(first):
    assert_all_agree([case(i) for i in range(first, first + TOGETHER)])


@pytest.mark.parametrize(
    "names",
    [
        ("matmul",),
        ("div trunc", "div floor", "lerp"),
        ("norm of one", "3-norm of one", "gather", "take_along_dim"),
        ("subtract number", "number minus", "times number", "larger than"),
        ("running", "cum", "whole running"),
        ("split", "nothing", "last part", "unfold", "index_select", "cat"),
    ],
)
def test_operators_that_were_wrong_agree(names):
    assert_all_agree([case(i, names) for i in range(60_000, 60_000 + TOGETHER)])


def plain(x):
    return Look("plain", x, lambda y: y)


def made(name, x, behind="nothing", bias=None):
    operator = {**ELEMENTWISE, **ALONG}[name]
    return Case(name, operator, (plain(x),), (0,) if operator.along else (), behind, bias)


def test_both_zeros_are_different():
    negated = made("neg", torch.tensor([0.0, 1.0]))
    assert not difference(negated, torch.tensor([-0.0, -1.0]))
    assert "at [0]" in difference(negated, torch.tensor([0.0, -1.0]))
    assert not difference(made("amax", torch.tensor([0.0, -0.0])), torch.tensor(-0.0))  # PyTorch's loops differ


def test_a_wrong_digit_a_wrong_shape_and_a_wrong_format_are_seen():
    root = made("sqrt", torch.tensor([2.0, 1e-25]))
    right = torch.tensor([2.0, 1e-25]).sqrt()
    assert not difference(root, right)
    assert difference(root, right * 1.0001)
    assert difference(root, right[:1])
    assert difference(root, right.double())
    assert difference(root, torch.tensor([2.0**0.5, 0.0]))


def test_a_crash_and_a_refusal_are_told_apart():
    x = torch.ones(2)

    def broken(x):
        raise KeyError("no code")

    crashed = Case("broken", Operator(broken), (plain(x),), (), "nothing", None)
    refused = Case("complex", Operator(lambda x: torch.complex(x, x).sqrt()), (plain(x),), (), "nothing", None)
    wrong = Case("another", Operator(lambda x: x + (x.device.type == "cpu")), (plain(x),), (), "nothing", None)
    found = {v.label: v.kind for v in judged([crashed, refused, wrong])}
    assert found == {"broken": CRASHED, "complex": REFUSED, "another": WRONG}
