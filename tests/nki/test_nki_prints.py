# SPDX-License-Identifier: Apache-2.0
"""What kernels show while they run: device_print, print, breakpoint."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.errors import ConstraintError


@nki.jit
def shown(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nl.device_print("before", tile)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nl.device_print("after", tile[:, 1:3])
    nl.store(out, tile)
    nl.device_print("out", out.reshape((2, 2)))
    return out


def test_a_kernel_shows_values_in_its_own_order_every_time_it_runs(capsys):
    for start in (1, 5):
        x = np.arange(start, start + 4, dtype=np.float32)[None]
        shown(x)
        expected = [f"before {x}", f"after {2 * x[:, 1:3]}", f"out {(2 * x).reshape(2, 2)}"]
        assert capsys.readouterr().out.splitlines() == "\n".join(expected).splitlines()
    assert len(shown.traces) == 1


def test_recording_and_timing_show_nothing(capsys):
    shown.timeline(np.ones((1, 4), np.float32))
    assert not capsys.readouterr().out


def test_each_core_shows_its_own_also_where_they_meet(capsys):
    @nki.jit
    def kernel(x):
        me = nl.program_id(0)
        tile, got = nl.load(x[me : me + 1]), nl.zeros((1, 4), dtype=x.dtype)
        nl.device_print(f"mine {me}", tile[:, 0:1])
        nisa.sendrecv(src=tile, dst=got, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nl.device_print(f"got {me}", got[:, 0:1])
        nisa.core_barrier(data=x, cores=(0, 1))
        nisa.sendrecv(src=got, dst=tile, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=1)
        nl.device_print(f"back {me}", tile[:, 0:1])
        return x

    kernel[2](np.array([[1] * 4, [2] * 4], np.float32))
    lines = capsys.readouterr().out.split("\n")[:-1]
    assert sorted(lines) == sorted(
        ["mine 0 [[1.]]", "mine 1 [[2.]]", "got 0 [[2.]]", "got 1 [[1.]]", "back 0 [[1.]]", "back 1 [[2.]]"]
    )
    assert [line for line in lines if " 0 " in line] == ["mine 0 [[1.]]", "got 0 [[2.]]", "back 0 [[1.]]"]


def test_print_shows_what_a_tensor_and_a_register_hold_then(capsys):
    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        print("tile", tile)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1)
        register = nisa.register_alloc(tile[:, 1:2])
        print("then", tile[:, 0:1], register)
        return x

    for _ in range(2):
        kernel(np.array([[1, 2]], np.int32))
        assert capsys.readouterr().out == "tile [[1 2]]\nthen [[2]] 3\n"


def test_a_breakpoint_stops_where_tensors_can_be_looked_at(monkeypatch, capsys):
    def hook():
        print(sys._getframe(1).f_locals["tile"])

    monkeypatch.setattr(sys, "breakpointhook", hook)

    def kernel(x):
        tile = nl.load(x)
        breakpoint()
        nisa.dma_copy(dst=x, src=tile)
        return x

    nki.simulate(kernel)(np.array([[1, 2]], np.int32))
    assert capsys.readouterr().out == "[[1 2]]\n"


def test_what_cannot_be_shown_is_refused():
    def psum(x):
        nl.device_print("x", nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.psum))

    def no_prefix(x):
        nl.device_print(x, x)

    for body, code in ((psum, "TRN403"), (no_prefix, "TRN411")):
        with pytest.raises(ConstraintError) as caught:
            nki.jit(body)(np.ones((1, 4), np.float32))
        assert caught.value.code == code
