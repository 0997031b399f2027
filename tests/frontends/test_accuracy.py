# SPDX-License-Identifier: Apache-2.0
"""Every function of floats keeps its bound in units in the last place, over its whole range, on both engines."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accuracy import CHIPS, FUNCTIONS, bound, errors, grid, measured
from helpers import check

pytestmark = pytest.mark.torch
NAMES = [function.name for function in FUNCTIONS]


@pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)
def test_in_fp32_on_every_chip(function):
    for engine in ("interpreter", *CHIPS):
        assert measured(function, "float32", engine).max() <= bound(function, "float32"), engine


@pytest.mark.parametrize("format", ["bfloat16", "float16"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)
def test_in_16_bits(function, format):
    """Computed in fp32 and rounded once: nearly the nearest number of the format."""
    for engine in ("interpreter", "trn2"):
        assert measured(function, format, engine).max() <= bound(function, format), engine


def test_grid_is_hostile():
    """Each exponent of the format, subnormals included, both signs, and what is no number."""
    for format, exponents in (("float32", 277), ("bfloat16", 261), ("float16", 40)):
        x = grid(format).double().numpy()
        finite = np.abs(x[np.isfinite(x) & (x != 0)])
        assert len(np.unique(np.floor(np.log2(finite)))) == exponents
        assert {np.inf, -np.inf} <= set(x[np.isinf(x)])
        assert np.isnan(x).any()
        assert len(np.unique(np.signbit(x[x == 0]))) == 2
    assert grid("float32").numel() > 50_000


def test_errors_are_counted_in_steps():
    """One step off is one; NaN, infinities and signs of zeros that differ are infinitely wrong."""
    sine = next(f for f in FUNCTIONS if f.name == "sin")
    want = np.array([1.0, 2.0**-130, np.nan, np.inf, 0.0, 1.0, -np.inf, 4e38, 1.0])
    got = np.array([1 + 2.0**-22, 2.0**-130 + 2.0**-149, np.nan, np.inf, -0.0, np.nan, np.inf, np.inf, np.inf])
    found = errors(got, want, sine, "float32", np.zeros(9))
    np.testing.assert_array_equal(found, [2, 1, 0, 0, np.inf, np.inf, np.inf, 0, np.inf])


INF, NAN = math.inf, math.nan
ROWS = torch.tensor(
    [
        [1.0, 2.0, 3.0, 4.0],
        [-INF] * 4,
        [INF, 1.0, 2.0, 3.0],
        [NAN, 1.0, 2.0, 3.0],
        [-INF, 1.0, 2.0, -INF],
        [0.0, -0.0, 0.0, -0.0],
        [1e30, -1e30, 2e38, -2e38],
        [1e-40, 2e-40, -1e-45, 0.0],
        [88.0, -88.0, 100.0, -30.0],
        [INF, INF, 0.0, 1.0],
        [1e-30] * 4,
        [-INF, INF, NAN, 0.0],
    ]
)
TARGET = torch.sigmoid(torch.arange(48.0).reshape(12, 4) - 20)
OF_ROWS = {
    "softmax": lambda x, t: F.softmax(x, -1),
    "log_softmax": lambda x, t: F.log_softmax(x, -1),
    "logsumexp": lambda x, t: torch.logsumexp(x, -1),
    "extremes": lambda x, t: (x.amax(-1), x.amin(-1), torch.maximum(x, t)),
    "mean": lambda x, t: x.mean(-1),
    "variance": lambda x, t: x.var(-1),
    "of one element": lambda x, t: x[:, :1].var(-1),
    "norm": lambda x, t: x.norm(dim=-1),
    "layer_norm": lambda x, t: F.layer_norm(x, (4,)),
    "rms_norm": lambda x, t: F.rms_norm(x, (4,)),
    "normalize": lambda x, t: F.normalize(x, dim=-1),
    "mse": lambda x, t: F.mse_loss(x, t, reduction="none"),
    "smooth_l1": lambda x, t: F.smooth_l1_loss(x, t, reduction="none"),
    "huber": lambda x, t: F.huber_loss(x, t, reduction="none"),
    "bce_with_logits": lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"),
    "kl_div": lambda x, t: F.kl_div(F.log_softmax(x, -1), t, reduction="none"),
    "softplus": lambda x, t: F.softplus(x),
    "relu": lambda x, t: F.relu(x),
}


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("name", OF_ROWS)
def test_rows_of_infinities_and_nan(name):
    """Softmax, statistics and losses over rows of -inf, inf, NaN, huge and tiny numbers, with gradients."""
    check(lambda x: OF_ROWS[name](x, TARGET.to(x.device)), [ROWS.clone()])
