# SPDX-License-Identifier: Apache-2.0
"""A convolution whose weights do not fit on chip at once before they are turned: they come in pieces, and count for
the same sums."""

import numpy as np

from trnlab.chips import catalog
from trnlab.kernels.convolutions.forward import convolution
from trnlab.kernels.view import full
from trnlab.kernels.windows import Slide
from trnlab.program.builder import Builder
from trnlab.sim.functional import Machine

CHANNELS, OUT, SIDE = 450, 160, 4  # input channels: three whole blocks and a part of one


def _convolved(limit: int, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, set[tuple[int, ...]]]:
    """The result, and the shapes of raw weights."""
    b = Builder("convolved", catalog.get("trn1"), sbuf_limit=limit)
    given = b.param("x", x.shape, "float32"), b.param("w", weight.shape, "float32")
    out = b.param("y", (1, OUT, SIDE, SIDE), "float32")
    slide = Slide(SIDE, 3, SIDE, low=1)
    convolution(b, *map(full, given), full(out), (slide, slide))
    routine = b.build()
    got = np.zeros((1, OUT, SIDE, SIDE), np.float32)
    Machine(b.chip).call(routine, [x, weight, got])
    return got, {buffer.shape for buffer in routine.buffers if buffer.name.startswith("raw weights")}


def test_weights_come_in_pieces_where_they_do_not_fit():
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (1, CHANNELS, SIDE, SIDE)).astype(np.float32)  # whole numbers: sums are exact
    weight = rng.integers(-3, 4, (OUT, CHANNELS, 3, 3)).astype(np.float32)
    whole, (large,) = _convolved(96 * 1024, x, weight)
    parts, (small,) = _convolved(40 * 1024, x, weight)
    assert (large[1], small[1]) == (CHANNELS * 9, 2 * 128 * 9)
    np.testing.assert_array_equal(whole, parts)
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    np.testing.assert_array_equal(parts[0], np.einsum("kyxij,mkij->myx", windows, weight))
