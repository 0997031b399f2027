# SPDX-License-Identifier: Apache-2.0
"""A bench for single instructions: compiled kernels beside the instruction's own definition, on equal memories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnlab import chips
from trnlab.isa.base import Memory
from trnlab.numerics import dtypes
from trnlab.numerics.dtypes import DType
from trnlab.numerics.rounding import narrow, store
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.sim.functional import Machine, RunOptions

CHIP = chips.get("trn2")
Array = np.ndarray[Any, Any]


def values(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Ordinary numbers of a format: both signs, zero among them, several magnitudes."""
    if dtype.name == "bool":
        return rng.integers(0, 2, shape).astype(np.uint8)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        low, high = max(info.min, -100), min(info.max, 100)
        return rng.integers(low, high + 1, shape).astype(dtype.numpy)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-2, 3, shape))
    x[rng.random(shape) < 0.05] = 0
    return narrow(x.astype(np.float32), dtype)


class Bench:
    """Tiles by name, an instruction, and what both ways of executing it leave in every tile."""

    def __init__(self, seed: int = 0) -> None:
        self.b = Builder("bench", CHIP)
        self.rng = np.random.default_rng(seed)
        self.tiles: dict[str, AP] = {}
        self.contents: dict[str, Array] = {}

    def tile(
        self, name: str, shape: tuple[int, ...], dtype: str = "float32", *, psum: bool = False, data: Any = None
    ) -> AP:
        """A tile filled with `data`, or with random values of its format."""
        memory = Memory.PSUM if psum else Memory.SBUF
        ap = self.b.psum(shape, dtype) if psum else self.b.tile(shape, dtype, name=name, memory=memory)
        self.tiles[name] = ap
        kind = dtypes.dtype(dtype)
        if data is None:
            self.contents[name] = values(self.rng, kind, shape)
        else:
            data = np.asarray(data)
            self.contents[name] = data.astype(kind.numpy) if data.dtype.kind in "iu" else store(data, kind)
        return ap

    def run(self, *, by_definition: bool, **options: Any) -> dict[str, Array]:
        """Contents of all tiles after execution."""
        routine = self.b.build()
        machine = Machine(CHIP, RunOptions(by_definition=by_definition, **options))
        for name, ap in self.tiles.items():
            machine.view(ap)[...] = self.contents[name].reshape(ap.shape)
        machine.call(routine, [])
        self.machine = machine
        return {name: machine.view(ap).copy() for name, ap in self.tiles.items()}

    def same_bits(self) -> None:
        """Kernels and definition leave the same bits, and the kernels ran without Python."""
        expected, got = self.run(by_definition=True), self.run(by_definition=False)
        assert self.machine.by_meaning == 0, "no kernel"
        for name, array in expected.items():
            np.testing.assert_array_equal(_bits(got[name]), _bits(array), err_msg=name)

    def close(self, name: str, rtol: float, atol: float = 0.0) -> None:
        """Kernels and definition agree on one tile within a tolerance."""
        expected, got = self.run(by_definition=True), self.run(by_definition=False)
        assert self.machine.by_meaning == 0, "no kernel"
        np.testing.assert_allclose(
            got[name].astype(np.float64), expected[name].astype(np.float64), rtol=rtol, atol=atol, err_msg=name
        )


def _bits(array: Array) -> Array:
    """Bits, with every NaN made the same one."""
    if array.dtype.kind in "iu":
        return array
    as_float = array.astype(np.float32)
    return np.where(np.isnan(as_float), np.float32(np.nan), as_float).view(np.uint32)


def bench(emit: Callable[[Bench], None], seed: int = 0) -> Bench:
    """A bench on which `emit` has put its tiles and instructions."""
    one = Bench(seed)
    emit(one)
    return one
