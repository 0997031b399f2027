# SPDX-License-Identifier: Apache-2.0
"""What torchao's float8 training is made of: casts to float8, `_scaled_mm`, scales in float64 for a moment."""

from __future__ import annotations

import pytest
import torch
from helpers import check

from trnlab import chips
from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch import compile_step
from trnlab.runtime import session

NUMBERS = [0.0, -0.0, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 447.0, -448.0, 17.0, 18.5, 1 / 3, -1e-30, float("nan")]


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_casts_to_float8_and_back_are_those_of_pytorch(kind) -> None:
    """Every finite value rounds as PyTorch's does, the sign of zero and NaN among them."""
    torch.manual_seed(0)
    x = torch.cat([torch.tensor(NUMBERS), torch.randn(500) * 2.0 ** torch.randint(-12, 7, (500,))])
    check(lambda x: x.to(kind).to(torch.float32), [x], gradients=False, rtol=0, atol=0, on=["interpreter", "trn3"])


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_scaled_mm(by_row, bias) -> None:
    torch.manual_seed(1)
    m, k, n = 32, 48, 16
    x, w = (torch.randn(s) * 2.0 ** torch.randint(-6, 6, s) for s in ((m, k), (n, k)))
    scales = (torch.rand(m, 1), torch.rand(1, n)) if by_row else (torch.rand(()), torch.rand(()))
    given = [x, w, *scales, *([torch.randn(n, dtype=torch.bfloat16)] if bias else [])]

    def product(x, w, scale_x, scale_w, bias=None):
        left, right = x.to(torch.float8_e4m3fn), w.to(torch.float8_e5m2).t()
        return torch._scaled_mm(left, right, scale_x, scale_w, bias, out_dtype=torch.bfloat16)

    check(product, given, gradients=False, rtol=2.0**-7, atol=1e-2, on=["interpreter", "trn3"])


def test_a_scale_in_float64_for_a_moment() -> None:
    """As torchao makes it: within two units of the last place of the same in float64."""

    def scale(x):
        amax = x.abs().amax().to(torch.float64)
        return (448.0 / torch.clamp(amax, min=1e-12)).to(torch.float32)

    for value in (1.0, 3.3, 1e-20, 7e30):
        check(scale, [torch.full((4, 4), value)], gradients=False, rtol=3e-7, atol=0, on=["interpreter", "trn1"])


def refused(chip, loss_fn):
    """What a step of this loss is refused with."""
    model = torch.nn.Linear(4, 4).to("neuron")
    step, x = compile_step(model, torch.optim.SGD(model.parameters()), loss_fn), torch.ones(2, 4).to("neuron")
    with session.activate(session.Session(chips.target(chip), "fp32")), pytest.raises(UnsupportedOpError) as raised:
        step(x)
    return raised.value


def test_float64_that_lasts_is_refused() -> None:
    assert refused("trn3", lambda m, x: (m(x).double() + 1e-9).sum().float()).code == "TRN212"


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_the_ocp_format_is_refused_where_the_vendor_refuses_it(chip) -> None:
    error = refused(chip, lambda m, x: m(x).sum() + x.to(torch.float8_e4m3fn).float().sum())
    assert error.code == "TRN248"
    assert "--precision fp8" in str(error)
