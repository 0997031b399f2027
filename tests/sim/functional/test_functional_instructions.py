# SPDX-License-Identifier: Apache-2.0
"""Instructions without a compiled loop run on the machine by their definition, state and all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnlab import chips
from trnlab.errors import RunError
from trnlab.isa.base import Engine
from trnlab.numerics.rounding import narrow
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.sim.functional import Machine
from trnlab.sim.timing import time_routine

TRN2, TRN3 = chips.get("trn2"), chips.get("trn3")


def run(
    b: Builder, tiles: dict[AP, Any] | list[tuple[AP, Any]], params: list[np.ndarray[Any, Any]] | None = None
) -> Machine:
    """A machine on which the builder's routine has run over tiles with these contents; it can also be timed."""
    routine = b.build()
    machine = Machine(b.chip)
    for tile, contents in tiles:
        machine.view(tile)[...] = np.asarray(contents).reshape(tile.shape)
    machine.call(routine, params or [])
    assert time_routine(routine, b.chip).total > 0
    return machine


def test_accumulators_add_up_rows_of_several_instructions() -> None:
    """A sum over three tiles that stays in the accumulators until it is asked for; the compiled loop stays out."""
    rng = np.random.default_rng(0)
    b = Builder("sum", TRN2)
    parts = [b.tile((64, 40), "float32") for _ in range(3)]
    acc, out = b.tile((64, 1), "float32"), b.tile((64, 1), "float32")
    contents = [rng.standard_normal((64, 40)).astype(np.float32) for _ in parts]
    for i, part in enumerate(parts):
        command = "reduce" if i else "reset_reduce"
        result = {"reduce_res": out} if i == 2 else {}
        b.activation(dst=part, data=part, op="square", reduce_cmd=command, accumulators=acc, **result)
    machine = run(b, list(zip(parts, contents)))
    assert machine.by_meaning == 3
    want = sum((x * x).sum(axis=1, dtype=np.float32) for x in contents)
    np.testing.assert_allclose(machine.view(out)[:, 0], want, rtol=1e-6)


def test_accumulators_do_not_make_instructions_wait() -> None:
    """An engine uses its registers in its own order: chained sums take as long as sums that are not chained."""
    times = []
    for command in ("reset_reduce", "reduce"):
        b = Builder("chain", TRN2)
        tiles, acc = [b.tile((128, 64), "float32") for _ in range(8)], b.tile((128, 1), "float32")
        b.memset(dst=acc)
        for tile in tiles:
            b.memset(dst=tile)
        for tile in tiles:
            b.activation(dst=tile, data=tile, op="exp", reduce_cmd=command, accumulators=acc)
        times.append(time_routine(b.build(), TRN2).total)
    assert times[0] == times[1]


def test_a_softmax_on_one_engine() -> None:
    """exponential with its sum, then the reciprocal, on Trainium3."""
    x = np.random.default_rng(1).standard_normal((32, 50)).astype(np.float32) * 4
    b = Builder("softmax", TRN3)
    t, top, total = b.tile((32, 50), "float32"), b.tile((32, 1), "float32"), b.tile((32, 1), "float32")
    b.tensor_reduce(dst=top, data=t, op="max")
    b.exponential(dst=t, src=t, max_value=top, reduce_res=total)
    b.reciprocal(dst=total, data=total)
    b.tensor_scalar(dst=t, data=t, operand0=total)
    want = np.exp(x - x.max(axis=1, keepdims=True))
    machine = run(b, [(t, x)])
    np.testing.assert_allclose(machine.view(t), want / want.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("packed", ["float8_e5m2_x4", "float8_e4m3fn_x4"])
def test_quantized_matmul(packed: str) -> None:
    """quantize_mx makes what nc_matmul_mx multiplies: the product is that of the dequantized operands.

    Each of 4 x 64 products has a relative error of 2**-2 (e5m2: two fraction bits, 2**-3 each side) at most.
    """
    rng = np.random.default_rng(2)
    b = Builder("mx", TRN3)
    left, right = b.tile((64, 8, 4), "bfloat16"), b.tile((64, 16, 4), "bfloat16")
    acc = b.psum((8, 16))
    operands: dict[str, AP] = {}
    for name, tile in (("stationary", left), ("moving", right)):
        operands[name] = b.tile((64, tile.shape[1]), packed)
        operands[f"{name}_scale"] = b.tile((64, tile.shape[1]), "float8_e8m0fnu")
        b.quantize_mx(dst=operands[name], dst_scale=operands[f"{name}_scale"], src=tile)
    b.nc_matmul_mx(dst=acc, **operands)
    x, y = (narrow(rng.standard_normal(t.shape).astype(np.float32), t.dtype) for t in (left, right))
    machine = run(b, [(left, x), (right, y)])
    wide = x.astype(np.float64), y.astype(np.float64)
    want = np.einsum("kmq,knq->mn", *wide)
    bound = np.einsum("kmq,knq->mn", *(np.abs(v) for v in wide)) * (0.28 if packed == "float8_e5m2_x4" else 0.14)
    assert (np.abs(machine.view(acc) - want) <= bound).all()


def test_double_rows_and_long_results() -> None:
    """256 rows of FP8 in one pass; more columns than a bank, in bfloat16, on Trainium3."""
    rng = np.random.default_rng(3)
    b = Builder("fp8", TRN3)
    left, right = b.tile((128, 2, 16), "float8_e4m3"), b.tile((128, 2, 1500), "float8_e5m2")
    acc = b.psum((16, 1500), "bfloat16")
    b.nc_matmul(dst=acc, stationary=left, moving=right, perf_mode="double_row")
    x, y = (narrow(rng.standard_normal(t.shape).astype(np.float32), t.dtype) for t in (left, right))
    want = np.einsum("krm,krn->mn", x.astype(np.float32), y.astype(np.float32))
    machine = run(b, [(left, x), (right, y)])
    np.testing.assert_allclose(machine.view(acc).astype(np.float32), want, atol=0.3, rtol=2.0**-8)


def test_rows_scattered_and_added_in_hbm() -> None:
    """dma_copy writes rows by index, dma_compute adds to them; rows outside are left out when asked."""
    table = np.zeros((10, 4), np.float32)
    b = Builder("scatter", TRN2)
    hbm = b.param("table", (10, 4), "float32")
    t, index = b.tile((3, 4), "float32"), b.tile((3, 1), "int32")
    b.dma_copy(dst=hbm, src=t, index=index, indirect="dst", engine=Engine.GPSIMD, oob_mode="skip")
    b.dma_compute(dst=hbm, src0=t, index=index, indirect="dst", engine=Engine.GPSIMD, oob_mode="skip")
    run(b, [(t, np.arange(12)), (index, [7, 99, 2])], [table])
    want = np.zeros((10, 4), np.float32)
    want[7], want[2] = 2 * np.arange(4), 2 * np.arange(8, 12)
    np.testing.assert_array_equal(table, want)


def test_generators_live_on_the_machine() -> None:
    """Seeding and drawing: the second tile continues the stream of the first."""
    b = Builder("random", TRN2)
    seed, state = b.tile((1, 1), "uint32"), b.tile((128, 2), "uint32")
    first, second, again = (b.tile((128, 8), "uint32") for _ in range(3))
    b.set_rng_seed(state=state, src_seeds=seed)
    b.rng(dst=first, state=state)
    b.rng(dst=second, state=state)
    b.set_rng_seed(state=state, src_seeds=seed)
    b.rng(dst=again, state=state)
    machine = run(b, [(seed, 42)])
    np.testing.assert_array_equal(machine.view(again), machine.view(first))
    assert not (machine.view(first) == machine.view(second)).any()


def test_registers_hold_numbers() -> None:
    """From memory into a register, into another, and back."""
    b = Builder("registers", TRN2)
    count, out = b.param("count", (1, 1), "int32"), b.tile((1, 1), "int32")
    one, two = b.tile((1, 1), "int32"), b.tile((1, 1), "int32")
    b.register_alloc(dst=one, x=None)
    b.register_load(dst=one, src=count)
    b.register_move(dst=two, src=one)
    b.register_store(dst=out, src=two)
    machine = run(b, [], [np.array([[-7]], np.int32)])
    assert machine.view(out)[0, 0] == -7


def test_a_row_that_does_not_exist_stops_the_run() -> None:
    """Gathers within SBUF report as those from HBM do."""
    b = Builder("outside", TRN2)
    t, places = b.tile((16, 4), "float32"), b.tile((16, 4), "uint32")
    b.nc_n_gather(dst=t, data=t, indices=places)
    with pytest.raises(RunError, match="does not exist"):
        run(b, [(places, np.full((16, 4), 4))])
