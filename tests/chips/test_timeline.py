# SPDX-License-Identifier: Apache-2.0
"""The timeline file: what is written is read back, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import timeline
from trnlab.errors import RunError
from trnlab.timeline import CallInfo, OpInfo, Timeline


def sample(rows=5):
    column = np.arange(rows, dtype=np.int64) * 1000
    return Timeline(
        name="step",
        target="trn1",
        total=10_000,
        startup=100,
        completion=300,
        ops=(
            OpInfo("nc_matmul", "pe.matmul", 512, 128, 128, "bfloat16", flops=7),
            OpInfo("dma_copy", "dma.copy", 1, 2, 3, "x"),
        ),
        calls=(CallInfo("layer 0", "layer", 0, rows, "train.py:3"),),
        start=column,
        end=column + 500,
        begin=column,
        done=column + 900,
        blocker=np.arange(rows, dtype=np.int32) - 1,
        cause=np.ones(rows, np.int8),
        held=np.full(rows, -1, np.int32),
        engine=np.zeros(rows, np.int8),
        op=np.zeros(rows, np.int32),
        call=np.zeros(rows, np.int32),
        meta={"chip": "Trainium1", "peak": 92e12},
    )


@pytest.mark.parametrize("rows", [0, 1, 5, 1000])
def test_round_trip(tmp_path, rows):
    path, before = tmp_path / "step.timeline", sample(rows)
    timeline.save(before, path)
    after = timeline.load(path)
    assert after.same_times(before)
    assert (after.name, after.ops, after.calls, after.meta) == (before.name, before.ops, before.calls, before.meta)
    assert after.to_bytes() == before.to_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["step.timeline"]


def test_same_times_sees_a_difference():
    other = sample()
    other.start = other.start + 1
    assert not sample().same_times(other)


def test_damage_is_noticed(tmp_path):
    path, data = tmp_path / "step.timeline", sample().to_bytes()
    flipped = bytearray(data)
    flipped[-64] ^= 1  # in the last column
    for bad in (
        b"",
        b"PK",
        data[:4],
        data[:40],
        data[:-500],
        bytes(flipped),
        data.replace(b'"version": 1', b'"version": 9'),
    ):
        path.write_bytes(bad)
        with pytest.raises(RunError, match="TRN812"):
            timeline.load(path)
    with pytest.raises(RunError, match="TRN811"):
        timeline.load(tmp_path / "missing")
