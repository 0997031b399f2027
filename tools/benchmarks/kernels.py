# SPDX-License-Identifier: Apache-2.0
"""Kernels of the kernel language: how fast they are recorded, checked and executed.

With NKI_SAMPLES naming a checkout of aws-neuron/nki-samples (3a99c91, which has both), its own tiled matmul and
flash attention are measured; otherwise kernels of the same tiling that are written out here.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch

from benchmarks import lines
from trnlab import nki
from trnlab.nki import isa as nisa
from trnlab.nki import language as nl
from trnlab.nki import neuronxcc
from trnlab.nki.imports import install_imports
from trnlab.nki.neuronxcc import isa as old_isa
from trnlab.nki.neuronxcc import language as old
from trnlab.nki.target import default_chip
from trnlab.sim.checks import Scene, check_routine
from trnlab.sim.functional import RunOptions

SIZE, SEQUENCE, HEAD = 2048, 4096, 128
SMALL = 10_000  # instructions of the kernel that does next to nothing
ROUNDS = 7
MOST_LINES = 4000  # of plain Python, in the time of an instruction of a kernel that does not fit
Array = np.ndarray[Any, Any]


# -- kernels ------------------------------------------------------------------------------------------------------
@nki.jit
def tiled_matmul(lhs_t: Any, rhs: Any) -> Any:
    """out[M, N] = lhs_t[K, M].T rhs[K, N], a tile of 128 by 512 at a time, operands loaded where they are used."""
    (depth, rows), columns = lhs_t.shape, rhs.shape[1]
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(rows // 128):
        for n in nl.affine_range(columns // 512):
            total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(depth // 128):
                stationary = nl.ndarray((128, 128), dtype=lhs_t.dtype, buffer=nl.sbuf)
                moving = nl.ndarray((128, 512), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=stationary, src=lhs_t[k * 128 : (k + 1) * 128, m * 128 : (m + 1) * 128])
                nisa.dma_copy(dst=moving, src=rhs[k * 128 : (k + 1) * 128, n * 512 : (n + 1) * 512])
                nisa.nc_matmul(dst=total, stationary=stationary, moving=moving)
            result = nl.ndarray((128, 512), dtype=lhs_t.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=total)
            nisa.dma_copy(dst=out[m * 128 : (m + 1) * 128, n * 512 : (n + 1) * 512], src=result)
    return out


def loaded(source: Any, shape: tuple[int, int]) -> Any:
    """A tile in SBUF with the contents of an HBM tensor."""
    tile = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def column() -> Any:
    """One fp32 number per query."""
    return nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)


@nki.jit
def flash_attention(q: Any, k: Any, v: Any) -> Any:
    """softmax(q^T k / sqrt(d)) v for q, k [d, S] and v [S, d], 128 queries and 512 keys at a time."""
    head, length = q.shape
    out = nl.ndarray((length, head), dtype=q.dtype, buffer=nl.shared_hbm)
    keys = loaded(k, (head, length))
    values = [loaded(v[j * 128 : (j + 1) * 128, :], (128, head)) for j in nl.affine_range(length // 128)]
    for i in nl.affine_range(length // 128):
        queries = nl.ndarray((head, 128), dtype=q.dtype, buffer=nl.sbuf)
        raw = loaded(q[:, i * 128 : (i + 1) * 128], (head, 128))
        nisa.tensor_scalar(dst=queries, data=raw, op0=nl.multiply, operand0=head**-0.5)
        top, total = column(), column()
        acc = nl.ndarray((128, head), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=top, value=-1e30)
        nisa.memset(dst=total, value=0.0)
        nisa.memset(dst=acc, value=0.0)
        for j in nl.sequential_range(length // 512):
            top, total = attend(queries, keys[:, j * 512 : (j + 1) * 512], values[4 * j : 4 * j + 4], top, total, acc)
        inverse = column()
        nisa.reciprocal(dst=inverse, data=total)
        result = nl.ndarray((128, head), dtype=q.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=acc, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=result)
    return out


def attend(queries: Any, keys: Any, values: list[Any], top: Any, total: Any, acc: Any) -> tuple[Any, Any]:
    """Take 512 more keys into the running maximum, the running sum and the running result."""
    scores = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=scores, stationary=queries, moving=keys)
    here, high, low = column(), column(), column()
    nisa.tensor_reduce(dst=here, op=nl.maximum, data=scores, axis=1)
    nisa.tensor_tensor(dst=high, data1=top, data2=here, op=nl.maximum)
    nisa.tensor_scalar(dst=low, data=high, op0=nl.multiply, operand0=-1.0)
    weights = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    part, rescale, grown = column(), column(), column()
    nisa.activation(dst=weights, op=nl.exp, data=scores, bias=low)
    nisa.tensor_reduce(dst=part, op=nl.add, data=weights, axis=1)
    nisa.activation(dst=rescale, op=nl.exp, data=top, bias=low)
    nisa.scalar_tensor_tensor(dst=grown, data=total, op0=nl.multiply, operand0=rescale, op1=nl.add, operand1=part)
    product = nl.ndarray((128, acc.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for n, value in enumerate(values):
        turned = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=weights[:, n * 128 : (n + 1) * 128], engine=nisa.engine.tensor)
        ready = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=ready, src=turned)
        nisa.nc_matmul(dst=product, stationary=ready, moving=value)
    nisa.scalar_tensor_tensor(dst=acc, data=acc, op0=nl.multiply, operand0=rescale, op1=nl.add, operand1=product)
    return high, grown


@nki.jit
def small_steps(x: Any) -> Any:
    """Many instructions on eight numbers a partition: all that they cost is overhead."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a, b = loaded(x, (128, 8)), loaded(x, (128, 8))
    for i in nl.static_range(SMALL // 4):
        at = i % 4
        nisa.tensor_tensor(dst=b, data1=a, data2=b, op=nl.maximum)
        nisa.tensor_scalar(dst=a[:, at : at + 4], data=b[:, 4:8], op0=nl.multiply, operand0=0.5)
        nisa.activation(dst=a, op=nl.relu, data=b)
        nisa.tensor_copy(dst=b[:, 0:4], src=a[:, 4:8])
    nisa.dma_copy(dst=out, src=b)
    return out


@neuronxcc.jit
def old_steps(x: Any) -> Any:
    """The same in the older dialect: products of three numbers, and their sums, as in public convolutions."""
    count = SMALL // 2
    out = old.ndarray((128, count), dtype=x.dtype, buffer=old.shared_hbm)
    rows, three = old.arange(128)[:, None], old.arange(3)[None, :]
    a, sums = old.load(x), old.ndarray((128, count), dtype=x.dtype, buffer=old.sbuf)
    for i in old.affine_range(count):
        product = old_isa.tensor_tensor(a[rows, three + i % 5], a[rows, three], op=np.multiply)
        sums[rows, i] = old_isa.tensor_reduce(np.add, product, axis=[1])
    old.store(out, sums)
    return out


@neuronxcc.jit
def old_blocks(lhs: Any, rhs: Any) -> Any:
    """lhs [m, 128, k, 128] times rhs [k, 128, 1024] as compilers write kernels: a tile for each value of loops. All
    of rhs is loaded first, which SBUF does not have room for, so that the passes spill it."""
    (rows, _, depth, _), wide, halves = lhs.shape, rhs.shape[2], 2
    out = old.ndarray((rows, 128, wide), dtype=np.float32, buffer=old.shared_hbm)
    b = old.ndarray((depth, old.par_dim(128), wide), dtype=np.float32, buffer=old.sbuf)
    a = old.ndarray((rows, depth, old.par_dim(128), 128), dtype=np.float32, buffer=old.sbuf)
    sums = old.zeros((rows, halves, old.par_dim(128), 512), dtype=np.float32, buffer=old.psum)
    result = old.ndarray((rows, old.par_dim(128), wide), dtype=np.float32, buffer=old.sbuf)
    p = old.arange(128)[:, None]
    for k in old.affine_range(depth):
        b[k, p, old.arange(wide)[None, :]] = old.load(rhs[k, p, old.arange(wide)[None, :]])
    for m in old.affine_range(rows):
        for k in old.affine_range(depth):
            a[m, k, p, old.arange(128)[None, :]] = old.load(lhs[m, p, k, old.arange(128)[None, :]])
        for h in old.affine_range(halves):
            for k in old.affine_range(depth):
                sums[m, h, p, old.arange(512)[None, :]] += old_isa.nc_matmul(
                    a[m, k, p, old.arange(128)[None, :]], b[k, p, 512 * h + old.arange(512)[None, :]]
                )
            result[m, p, 512 * h + old.arange(512)[None, :]] = old.copy(sums[m, h, p, old.arange(512)[None, :]])
        old.store(out[m, p, old.arange(wide)[None, :]], value=result[m, p, old.arange(wide)[None, :]])
    return out


# -- measuring ----------------------------------------------------------------------------------------------------
def bf16(rng: np.random.Generator, *shape: int) -> Array:
    """Normal random numbers in bfloat16."""
    return rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)


def of_samples(path: str, name: str) -> ModuleType:
    """A module of the checkout that NKI_SAMPLES names."""
    install_imports()
    spec = importlib.util.spec_from_file_location(name, Path(os.environ["NKI_SAMPLES"], "src/nki_samples", path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def matmul_line() -> lines.Line:
    """A tiled matmul kernel against NumPy."""
    rng = np.random.default_rng(0)
    left, right = bf16(rng, SIZE, SIZE), bf16(rng, SIZE, SIZE)
    wide = left.astype(np.float32), right.astype(np.float32)
    kernel, whose = tiled_matmul, "own kernel"
    if os.environ.get("NKI_SAMPLES"):
        path = "tutorials/matrix_multiplication/matrix_multiplication_nki_kernels.py"
        kernel, whose = of_samples(path, "samples_matmul").nki_matmul_tiled_, "nki-samples"
    kernel.options = RunOptions(threads=1)
    ours, theirs = lines.in_turns([lambda: kernel(left, right), lambda: wide[0].T @ wide[1]], ROUNDS)
    note = f"{ours * 1e3:.0f} ms against {theirs * 1e3:.0f} ms, {whose}, recorded before, one thread each"
    return lines.at_most(f"tiled {SIZE}^3 bf16 kernel / NumPy fp32", ours / theirs, 2, "x", note)


def flash_line() -> lines.Line:
    """Flash attention forward against the same maths in PyTorch."""
    rng = np.random.default_rng(0)
    q, k, v = bf16(rng, HEAD, SEQUENCE), bf16(rng, HEAD, SEQUENCE), bf16(rng, SEQUENCE, HEAD)
    kernel, arguments, whose = flash_attention, (q, k, v), "own kernel"
    if os.environ.get("NKI_SAMPLES"):
        kernel, whose = of_samples("reference/attention.py", "samples_attention").flash_fwd[1, 1], "nki-samples"
        arguments = (q[None, None], k[None, None], v[None, None], None)
    kernel.options = RunOptions(threads=1)
    options = {"use_causal_mask": False} if len(arguments) > 3 else {}
    queries, keys, values = (torch.from_numpy(x.astype(np.float32)) for x in (q.T, k, v))
    torch.set_num_threads(1)

    def reference() -> torch.Tensor:
        return torch.softmax(queries @ keys * HEAD**-0.5, -1) @ values

    ours, theirs = lines.in_turns([lambda: kernel(*arguments, **options), reference], 3)
    note = (
        f"{ours * 1e3:.0f} ms against {theirs * 1e3:.0f} ms, {SEQUENCE} keys, head {HEAD}, {whose}, one thread each"
    )
    return lines.at_most("flash attention kernel / PyTorch fp32", ours / theirs, 4, "x", note)


def overhead_lines() -> list[lines.Line]:
    """What recording, passes and checks cost in both dialects, and that the second call records nothing."""
    x = np.zeros((128, 8), np.float32)

    def anew(kernel: Any, *arguments: Any) -> Any:
        return type(kernel)(kernel.function).trace(*(arguments or (x,)))

    small_steps.trace(x)
    routine = old_steps.trace(x).routine
    blocks = np.zeros((16, 128, 64, 128), np.float32), np.zeros((64, 128, 1024), np.float32)
    spilled = old_blocks.trace(*blocks).routine
    scene = Scene(filled=frozenset(routine.params), masks=True)
    functions = [
        lambda: anew(small_steps),
        lambda: anew(old_steps),
        lambda: small_steps.trace(x),
        yardstick,
        lambda: check_routine(routine, default_chip(), scene),
        lambda: anew(old_blocks, *blocks),
    ]
    recording, older, again, python, checks, spilling = lines.in_turns(functions, ROUNDS)
    each, of_old = recording / SMALL * 1e6, older / SMALL * 1e6
    note = f"{SMALL} instructions; a line of plain Python takes {python / YARDS * 1e9:.0f} ns here"
    return [
        lines.at_most("recording and checks, small instruction", each, 10, "us", note),
        lines.at_most("  in the older dialect", of_old, 10, "us", "index expressions, a tile for each result"),
        lines.at_most("    of that, checks", checks / SMALL * 1e6, 2, "us", "undefined values, races, overlaps"),
        _spilling_line(spilled, spilling, python),
        lines.at_most(
            "the same kernel once more / first time", again / recording, 0.01, "x", f"{again * 1e6:.0f} us"
        ),
    ]


def _spilling_line(routine: Any, seconds: float, python: float) -> lines.Line:
    """An instruction of a large kernel, in lines of plain Python. python: seconds of `yardstick`."""
    count = routine.changes[0].before.instructions
    moved = sum(spill.times for spill in routine.spills)
    note = f"{seconds / count * 1e6:.0f} us; {count} instructions recorded, {moved} tiles leave SBUF"
    each = seconds / count / (python / YARDS)
    return lines.at_most("recording and spilling, an instruction / a line of Python", each, MOST_LINES, "x", note)


YARDS = 20_000


def yardstick() -> None:
    """What this machine makes of two lines of Python that look something up."""
    seen: dict[tuple[int, str], int] = {}
    for i in range(YARDS // 2):
        key = i & 7, "a"
        seen[key] = seen.get(key, 0) + i


def main() -> None:
    """Measure and report."""
    lines.report([matmul_line(), flash_line(), *overhead_lines()])


if __name__ == "__main__":
    main()
