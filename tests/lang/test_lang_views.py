# SPDX-License-Identifier: Apache-2.0
"""Views of tensors address the same elements as NumPy's views do, and refuse what no access pattern can say."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab.chips import catalog
from trnlab.errors import ConstraintError
from trnlab.lang.recorder import Recorder
from trnlab.lang.storage import MemorySpace
from trnlab.lang.tensor import IndexWindow, Tensor

DATA = np.arange(4 * 6 * 8, dtype=np.float32).reshape(4, 6, 8)


def tensors() -> tuple[Recorder, Tensor, Tensor]:
    recorder = Recorder("views", catalog.get("trn2"))
    return (
        recorder,
        recorder.argument("x", DATA.shape, "float32"),
        recorder.tensor(DATA.shape, "float32", MemorySpace.sbuf),
    )


def elements(view: Tensor) -> np.ndarray:
    """What the view shows of DATA."""
    item = DATA.itemsize
    flat = DATA.reshape(-1)[view.offset :]
    return np.lib.stride_tricks.as_strided(flat, view.shape, tuple(s * item for s in view.strides))


VIEWS = {
    "slice": (lambda t: t[1:3, 2:6:2], lambda a: a[1:3, 2:6:2]),
    "negative": (lambda t: t[:, -2:, -1:], lambda a: a[:, -2:, -1:]),
    "ellipsis": (lambda t: t[..., 3], lambda a: a[..., 3]),
    "window": (lambda t: t[:, IndexWindow(2, 3)], lambda a: a[:, 2:5]),
    "permute": (lambda t: t.permute((0, 2, 1)), lambda a: a.transpose(0, 2, 1)),
    "expand and broadcast": (lambda t: t.expand_dim(1).broadcast(1, 3), lambda a: np.repeat(a[:, None], 3, 1)),
    "squeeze": (lambda t: t[:, 0:1].squeeze_dim(1), lambda a: a[:, 0]),
    "split": (lambda t: t.reshape_dim(1, (2, -1)), lambda a: a.reshape(4, 2, 3, 8)),
    "flatten": (lambda t: t.flatten_dims(1, 2), lambda a: a.reshape(4, 48)),
    "reshape": (lambda t: t.reshape((4, 12, 4)), lambda a: a.reshape(4, 12, 4)),
    "reshape a strided slice": (lambda t: t[:, ::2].reshape((4, 3, 2, 4)), lambda a: a[:, ::2].reshape(4, 3, 2, 4)),
    "rearrange": (
        lambda t: t.rearrange(("p", ("h", "w"), "c"), ("p", "w", ("c", "h")), {"h": 2}),
        lambda a: a.reshape(4, 2, 3, 8).transpose(0, 2, 3, 1).reshape(4, 3, 16),
    ),
    "ap": (lambda t: t.ap([[48, 4], [1, 6], [6, 8]]), lambda a: a.reshape(4, 8, 6).transpose(0, 2, 1)),
}


@pytest.mark.parametrize("name", [n for n in VIEWS if n != "rearrange"])
@pytest.mark.parametrize("place", ["hbm", "sbuf"])
def test_views_show_what_numpy_shows(name, place):
    _, in_hbm, in_sbuf = tensors()
    ours, theirs = VIEWS[name]
    view = ours(in_hbm if place == "hbm" else in_sbuf)
    np.testing.assert_array_equal(elements(view), theirs(DATA))


def test_rearrange_splits_and_reorders():
    _, x, _ = tensors()
    view = x.rearrange(("p", ("h", "w"), "c"), ("p", "w", "c", "h"), {"h": 2})
    np.testing.assert_array_equal(elements(view), DATA.reshape(4, 2, 3, 8).transpose(0, 2, 3, 1))


def test_an_integer_keeps_the_partition_on_chip_and_drops_it_in_hbm():
    _, x, tile = tensors()
    assert x[1].shape == (6, 8)
    assert tile[1].shape == (1, 6, 8)
    assert tile[0, 0, 0].shape == (1, 1)
    assert tile[:, 0].shape == (4, 8)
    assert tile[:, 0, 3].shape == (4, 1)


def test_a_view_reads_the_same_bytes_as_another_format():
    _, _, tile = tensors()
    wide = tile.view("uint8")
    assert (wide.shape, wide.strides) == ((4, 6, 32), (192, 32, 1))
    assert wide.view("float32").shape == DATA.shape


def test_the_access_pattern_has_the_elements_of_the_view():
    _, x, tile = tensors()
    ap = x[1:3, :, 2:4].access()
    assert (ap.offset, ap.partition_step, ap.partitions, ap.dims) == ((48 + 2) * 4, 192, 2, ((8, 6), (1, 2)))
    on_chip = tile[2:4, 1:3].access()
    assert (on_chip.start_partition, on_chip.offset, on_chip.dims) == (2, 32, ((1, 16),))


REFUSED = {
    "outside": (lambda t: t[:, 0:7], "TRN410"),
    "too many indices": (lambda t: t[0, 0, 0, 0], "TRN410"),
    "partition moved": (lambda t: t.permute((1, 0, 2)), "TRN409"),
    "partition split": (lambda t: t.reshape((2, 2, 6, 8)), "TRN409"),
    "not a view": (lambda t: t.permute((0, 2, 1)).reshape((4, 48)), "TRN409"),
    "broadcast of many": (lambda t: t.broadcast(1, 3), "TRN409"),
    "partition step": (lambda t: t.ap([[8, 4], [1, 8]]).access(), "TRN407"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_no_view_can_be_is_refused_at_the_users_line(name):
    _, _, tile = tensors()
    view, code = REFUSED[name]
    with pytest.raises(ConstraintError) as caught:
        view(tile)
    assert caught.value.code == code
    assert caught.value.where is not None
    assert caught.value.where.file == __file__
    assert caught.value.remedy
