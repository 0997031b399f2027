# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplication on the PE array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    MATMUL_DTYPES,
    PSUM_ONLY,
    SBUF_ONLY,
    Array,
    Arrays,
    Dataflow,
    Engine,
    Instruction,
    Operand,
    OperandSpec,
    Work,
    as_float,
)
from trnlab.isa.products.tiling import check_tile, columns_of_psum, tile_of

WIDE = frozenset({"float32", "tfloat32"})
FP8 = frozenset({"float8_e4m3", "float8_e5m2", "float8_e4m3fn"})
INPUTS = MATMUL_DTYPES | FP8
RESULTS = INPUTS  # narrow ones from transposes; see the limits
DOUBLE_ROW = "double_row"


@register
class NcMatmul(Instruction):
    """dst = stationary.T @ moving, or dst += it: K is contracted over the partitions, products are summed in float32.

    The array first loads the stationary operand [K, M], then streams the moving operand [K, N] past it. `accumulate`
    adds to what an earlier matmul left in dst; `stop` marks the last one of an accumulation group. Free dimensions
    are flattened. Whoever records a kernel that leaves `accumulate` open decides it: the first matmul that writes a
    place overwrites, later ones add.

    perf_mode double_row contracts 2 K rows of FP8 at once: both operands are [K, 2, ...], row k of the second half is
    row K + k of the contraction. is_transpose moves data instead of multiplying where moving is an identity (its
    columns hold one 1 each): NaN and infinities stay, and dst has the format of stationary. tile_position and
    tile_size use part of the array. is_stationary_onezero and is_moving_onezero promise a float32 operand of ones and
    zeros, which doubles the speed.
    """

    name = "nc_matmul"
    opcode = 1
    dataflow = Dataflow.PRODUCT
    accumulates = True
    engines = (Engine.TENSOR,)
    operands = (
        OperandSpec("dst", "dst", PSUM_ONLY, rw=True, shape=("M", "N"), dtypes=RESULTS),
        OperandSpec("stationary", "src", SBUF_ONLY, shape=("K", "M"), dtypes=INPUTS),
        OperandSpec("moving", "src", SBUF_ONLY, shape=("K", "N"), dtypes=INPUTS),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "accumulate": False,
        "stop": True,
        "perf_mode": "none",
        "is_transpose": False,
        "tile_position": (),
        "tile_size": (),
        "is_stationary_onezero": False,
        "is_moving_onezero": False,
    }
    sizes: ClassVar[Mapping[str, int]] = {"M": 128, "N": 512}
    indirect = ("dst", "stationary", "moving")
    limits = (
        "float32 and tfloat32 multiply only with each other",
        "on chips with long_matmul N is at most what all of PSUM holds in dst's format, and dst may cross banks",
        "dst is float32; bfloat16 on chips with bf16_psum; with is_transpose that of stationary, too (pe_transpose)",
        "float8_e4m3fn needs fp8_e4m3fn, and does not multiply with float8_e4m3",
        "double_row needs fp8_double_row and FP8 operands, and excludes column tiles and is_transpose",
        "tile_position and tile_size come together: tiles of 64 (32 with pe_tiles_32) or 128 rows and columns",
        "moving of a transpose, and operands of tiles, are not indirect",
    )
    cost_kinds = ("pe.matmul", "pe.matmul_onezero", "pe.transpose")
    source = "nki.isa.nc_matmul; trainium_inferentia2_arch.rst:134-298; trainium2_arch.rst:76-121, 197-204 (modes)"
    example = """
        weights, x = nl.ones((128, 64), nl.bfloat16), nl.ones((128, 512), nl.bfloat16)
        sums = nl.ndarray((64, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=sums, stationary=weights, moving=x)  # weights.T @ x
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Only an accumulating matmul reads dst."""
        return bool(attrs["accumulate"])

    def size_of(self, spec: OperandSpec, op: Operand, attrs: Mapping[str, Any]) -> tuple[int, int]:
        """With double rows, half of an input's elements belong to the second row."""
        halved = spec.role == "src" and attrs.get("perf_mode") == DOUBLE_ROW
        return op.partitions, op.free // 2 if halved else op.free

    def largest(self, letter: str, ops: Mapping[str, Operand], chip: Chip) -> int | None:
        """N goes by the generation."""
        return columns_of_psum(ops, chip) if letter == "N" else super().largest(letter, ops, chip)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Formats and modes go together."""
        self._check_inputs(ops, chip)
        self._check_result(ops, attrs, chip)
        if attrs["perf_mode"] != "none":
            self._check_double_row(ops, attrs, chip)
        check_tile(self, ops, attrs, chip, columns=attrs["perf_mode"] == "none")

    def _check_inputs(self, ops: Mapping[str, Operand], chip: Chip) -> None:
        formats = ops["stationary"].dtype.name, ops["moving"].dtype.name
        if (formats[0] in WIDE) != (formats[1] in WIDE):
            self.refuse(
                "a 32-bit and a narrower format cannot be multiplied",
                limit=self.limits[0],
                got=" @ ".join(formats),
                chip=chip,
                remedy="cast both to one format with tensor_copy",
                code="TRN408",
            )
        if "float8_e4m3fn" in formats and (not chip.has("fp8_e4m3fn") or "float8_e4m3" in formats):
            self.refuse(
                "float8_e4m3fn cannot be multiplied here",
                limit=self.limits[3],
                got=" @ ".join(formats),
                chip=chip,
                remedy="cast to one format of this generation with tensor_copy",
                code="TRN408",
            )

    def _check_result(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], chip: Chip) -> None:
        allowed = {"float32"} | ({"bfloat16"} if chip.has("bf16_psum") else set())
        if attrs["is_transpose"] and chip.has("pe_transpose"):
            allowed = {ops["stationary"].dtype.name, "float32"}
        if ops["dst"].dtype.name not in allowed:
            self.refuse(
                "a format that the array does not write",
                limit=" or ".join(sorted(allowed)),
                got=ops["dst"].dtype.name,
                chip=chip,
                remedy="make dst of that format, and cast when copying from PSUM",
                code="TRN408",
            )

    def _check_double_row(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], chip: Chip) -> None:
        if attrs["perf_mode"] != DOUBLE_ROW or not chip.has("fp8_double_row"):
            self.refuse(
                "no such performance mode",
                limit="none, or double_row on chips with fp8_double_row",
                got=attrs["perf_mode"],
                chip=chip,
                remedy="leave perf_mode out",
                code="TRN414",
            )
        inputs = [ops["stationary"], ops["moving"]]
        if any(op.dtype.name not in FP8 for op in inputs) or attrs["is_transpose"]:
            self.refuse(
                "double rows are for products of FP8",
                limit=self.limits[4],
                chip=chip,
                got=" @ ".join(op.dtype.name for op in inputs),
                remedy="leave perf_mode out",
                code="TRN408",
            )
        for op in inputs:
            if op.free % 2 or (len(op.dims) > 1 and op.dims[0][1] != 2):
                self.refuse(
                    "the first free dimension of both operands is the pair of rows",
                    limit="[K, 2, ...]",
                    got=[op.partitions, *(count for _, count in op.dims)],
                    chip=chip,
                    remedy="lay the two halves of the contraction one after the other",
                    code="TRN409",
                )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """float32 sums of products; data unchanged where an identity moves past it in transpose mode."""
        rows = 2 if attrs["perf_mode"] == DOUBLE_ROW else 1
        stationary, moving = (_matrix(arrays[name], rows) for name in ("stationary", "moving"))
        with np.errstate(all="ignore"):
            product = _picked(stationary, moving) if attrs["is_transpose"] else stationary.T @ moving
            product = product.reshape(arrays["dst"].shape)
            return {"dst": as_float(arrays["dst"]) + product if attrs["accumulate"] else product}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """K rows, M stationary and N moving columns; the cost follows the wider input's format."""
        stationary, moving = ops["stationary"], ops["moving"]
        widest = max(moving, stationary, key=lambda op: (op.dtype.itemsize, op.dtype.name == "float32"))
        rows = 2 if attrs["perf_mode"] == DOUBLE_ROW else 1
        k, m, n = moving.partitions, stationary.free // rows, moving.free // rows
        kind, flops = "pe.matmul", 2 * rows * k * m * n
        if attrs["is_transpose"]:
            kind, flops = "pe.transpose", 0
        elif attrs["is_stationary_onezero"] or attrs["is_moving_onezero"]:
            kind = "pe.matmul_onezero"
        psum, part = self.psum_mask(ops), tile_of(attrs)
        return Work(kind, n, m, k, widest.dtype.itemsize, widest.dtype.name, psum, flops=flops, part=part)


def _matrix(operand: Array, rows: int) -> Array:
    """float32 [rows * K, ...]: the second row of each partition follows the first rows of all."""
    k = operand.shape[0]
    return as_float(operand).reshape(k, rows, -1).transpose(1, 0, 2).reshape(rows * k, -1)


def _picked(stationary: Array, moving: Array) -> Array:
    """The product, with columns where moving holds a single 1 and zeros else taken from stationary bit by bit."""
    one = moving == 1
    single = (np.count_nonzero(one, axis=0) == 1) & (np.count_nonzero(moving, axis=0) == 1)
    picked = stationary[np.argmax(one, axis=0)].T
    return picked if single.all() else np.where(single, picked, stationary.T @ moving)
