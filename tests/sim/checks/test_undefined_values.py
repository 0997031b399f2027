# SPDX-License-Identifier: Apache-2.0
"""Undefined values are found exactly where the machine computes NaN from the poison in its fresh memory."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.program import AP, Builder
from trnlab.sim.checks import Scene, check_routine
from trnlab.sim.functional import Machine

F32, SIZE = "float32", 32
CHIP = chips.get("trn2")


def part(rng: np.random.Generator, tile: AP) -> AP:
    """Some columns of all or half of the partitions."""
    low, high = sorted(rng.choice(SIZE + 1, 2, replace=False).tolist())
    rows = slice(0, 32) if rng.random() < 0.5 else slice(32, 64)
    return tile[rows if rng.random() < 0.5 else slice(0, 64), low:high]


def step(rng: np.random.Generator, b: Builder, tiles: list[AP], column: AP, turned: AP, scratch: AP) -> None:
    """One random instruction; whatever it reads that is NaN makes NaN of what depends on it."""
    one, two, three = (tiles[i] for i in rng.integers(len(tiles), size=3))
    kind = rng.integers(7)
    if kind == 0:
        b.memset(dst=part(rng, one), value=1.0)
    elif kind == 1:
        b.tensor_tensor(dst=one, data1=two, data2=three, op="add")
    elif kind == 2:
        b.tensor_reduce(dst=column, data=part(rng, one)[0:32], op="add", axes=1)
        b.tensor_scalar(dst=two[0:32], data=three[0:32], operand0=column, op0="add")
    elif kind == 3:
        acc = b.psum((SIZE, SIZE))
        b.nc_matmul(dst=acc, stationary=one, moving=two)
        b.tensor_copy(dst=three[0:32], src=acc)
    elif kind == 4:
        flipped = b.psum((SIZE, 64))
        b.nc_transpose(dst=flipped, data=one)
        b.tensor_copy(dst=turned, src=flipped)
        b.tensor_copy(dst=two[0:32], src=turned[:, 0:SIZE])
    elif kind == 5:  # whole rows through HBM; what is undefined of them stays so, and no more
        b.dma_copy(dst=scratch, src=one)
        b.dma_copy(dst=two, src=scratch)
    else:
        source = part(rng, one)
        b.dma_copy(
            dst=two[source.start_partition : source.start_partition + source.partitions, : source.free], src=source
        )


@pytest.mark.parametrize("seed", range(60))
def test_findings_are_where_the_machine_has_nan(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = Builder("undefined", CHIP)
    tiles = [b.tile((64, SIZE), F32, name=f"t{i}") for i in range(4)]
    column, turned = b.tile((32, 1), F32), b.tile((SIZE, 64), F32)
    out, scratch = b.param("out", (64, SIZE), F32), b.param("scratch", (64, SIZE), F32)
    for tile in tiles:  # mostly defined, with a gap here and there
        b.memset(dst=tile if rng.random() < 0.6 else part(rng, tile), value=1.0)
    for _ in range(8):
        step(rng, b, tiles, column, turned, scratch)
    for tile in tiles[:3]:  # later ones go over earlier ones
        stored = part(rng, tile)
        b.dma_copy(dst=out[: stored.partitions, : stored.free], src=stored)
    routine = b.build()
    result = np.zeros((64, SIZE), np.float32)
    Machine(CHIP).call(routine, [result, np.zeros((64, SIZE), np.float32)])
    findings = check_routine(routine, CHIP, Scene(filled=frozenset({out.buffer.id})))
    assert bool(findings) == bool(np.isnan(result).any())
