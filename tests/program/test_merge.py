# SPDX-License-Identifier: Apache-2.0
"""Iterations that do the same side by side become one instruction, as far as a rule says, and no bit changes."""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.isa as nisa
import trnlab.nki.neuronxcc.language as nl
from trnlab import chips, isa, policy
from trnlab.nki import checks
from trnlab.nki.tracing.traces import memory_of
from trnlab.sim.functional import Machine

RNG = np.random.default_rng(0)
X = RNG.standard_normal((128, 2048)).astype(np.float32)
W = RNG.standard_normal((128, 3)).astype(np.float32)


def count(routine, name):
    """How many instructions of a name there are."""
    return int((routine.opcode == isa.REGISTRY[name].opcode).sum())


def both(kernel, *arguments):
    """The routine with merging and without, whose results are the same bits."""
    routines, results = [], []
    for merge in (True, False):
        with policy.use(merge=merge), np.errstate(all="ignore"):
            routines.append(kernel.trace(*arguments).routine)
            results.append(np.asarray(kernel(*arguments)))
    assert results[0].tobytes() == results[1].tobytes()
    return routines


def windows(outputs, loop=nl.affine_range, blocks=1):
    """Sums of products of three neighbours, one output at a time."""

    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((128, blocks * outputs), dtype=x.dtype, buffer=nl.shared_hbm)
        image, weights = nl.load(x), nl.load(w)
        result = nl.ndarray((nl.par_dim(128), blocks * outputs), dtype=x.dtype, buffer=nl.sbuf)
        p, f = nl.arange(128)[:, None], nl.arange(3)[None, :]
        for j in nl.affine_range(blocks):
            for i in loop(outputs):
                product = nisa.tensor_tensor(image[p, j * outputs + i + f], weights[p, f], op=np.multiply)
                result[p, j * outputs + i] = nisa.tensor_reduce(np.add, product, axis=[1])
        nl.store(out, result)
        return out

    return kernel


def test_a_loop_around_three_elements_is_one_instruction_of_each():
    merged, apart = both(windows(64), X, W)
    assert [count(apart, n) for n in ("tensor_tensor", "tensor_reduce")] == [64, 64]
    assert [count(merged, n) for n in ("tensor_tensor", "tensor_reduce")] == [1, 1]


def test_the_merged_loop_is_faster():
    kernel, x = windows(64, blocks=16), X[:, :1026]
    merged = kernel.timeline(x, W).total
    with policy.use(merge=False):
        assert merged < 0.2 * kernel.timeline(x, W).total


def test_a_loop_that_is_too_wide_stays_whole():
    """200 windows of three elements are more than 512 columns; loops are not cut into parts that would fit."""
    merged, _ = both(windows(200), X, W)
    assert count(merged, "tensor_tensor") == 200
    with policy.use(merge_columns=600):
        assert count(windows(200).trace(X, W).routine, "tensor_tensor") == 1


def test_what_an_inner_loop_keeps_apart_no_outer_loop_merges():
    """Loops do not change places: four blocks of 200 windows are not 200 instructions over the blocks."""
    merged, _ = both(windows(200, blocks=4), X, W)
    assert count(merged, "tensor_tensor") == 800


@pytest.mark.parametrize("loop", [nl.sequential_range, nl.static_range, range])
def test_only_loops_that_are_declared_independent_are_merged(loop):
    merged, _ = both(windows(64, loop), X, W)
    assert count(merged, "tensor_tensor") == 64


def turned(tiles, dtype):
    """Transposes of [128, 128] through PSUM."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, tiles, 128), dtype=dtype, buffer=nl.shared_hbm)
        loaded = nl.load(x[:, 0 : 128 * tiles], dtype=dtype)
        result = nl.ndarray((nl.par_dim(128), tiles, 128), dtype=dtype, buffer=nl.sbuf)
        for i in nl.affine_range(tiles):
            result[:, i, :] = nisa.tensor_copy(nisa.nc_transpose(loaded[:, nl.ds(128 * i, 128)]))
        nl.store(out, result)
        return out

    return kernel


@pytest.mark.parametrize(
    ("tiles", "dtype", "copies"),
    [
        (4, nl.float32, 1),  # one bank
        (8, nl.float32, 2),  # two banks, each of 512 columns
        (6, nl.float32, 2),  # a bank and a part of one
        (4, nl.bfloat16, 1),
        (8, nl.bfloat16, 8),  # one bank, but 1024 columns
    ],
)
def test_transposes_share_a_bank_and_its_copy(tiles, dtype, copies):
    """The counts of the public profiles of attention for 512 and 1024 keys, fp32 and bf16."""
    merged, apart = both(turned(tiles, dtype), X)
    assert (count(merged, "tensor_copy"), count(apart, "tensor_copy")) == (copies, tiles)
    assert count(merged, "nc_transpose") == tiles


def softmax_rows(rows, banks):
    """Maxima of rows of scores that fill so many banks of PSUM each, negated, and exponentials."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((rows, 128, banks * 512), dtype=x.dtype, buffer=nl.shared_hbm)
        loaded = nl.load(x)
        for i in nl.affine_range(rows):
            scores = nl.ndarray((nl.par_dim(128), banks * 512), dtype=nl.float32, buffer=nl.sbuf)
            partial = nl.ndarray((nl.par_dim(128), banks), dtype=nl.float32, buffer=nl.sbuf)
            for j in nl.affine_range(banks):
                product = nisa.nc_matmul(loaded[:, nl.ds(128 * i, 128)], loaded[:, nl.ds(512 * j, 512)])
                scores[:, nl.ds(512 * j, 512)] = nisa.tensor_copy(product)
                partial[:, j] = nisa.tensor_reduce(nl.max, scores[:, nl.ds(512 * j, 512)], axis=1)
            least = nisa.tensor_reduce(nl.max, partial, axis=1, negate=True)
            nl.store(out[i], nisa.activation(op=nl.exp, data=scores, bias=least))
        return out

    return kernel


@pytest.mark.parametrize(("banks", "together"), [(1, 8), (2, 4), (4, 2)])
def test_small_reductions_are_merged_over_what_psum_holds(banks, together):
    merged, apart = both(softmax_rows(8, banks), X * 0.01)
    assert count(apart, "tensor_reduce") == 8 * banks + 8
    assert count(merged, "tensor_reduce") == 8 * banks + 8 // together


def test_sums_of_several_matmuls_keep_banks_of_their_own():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        loaded = nl.load(x)
        result = nl.ndarray((nl.par_dim(128), 512), dtype=x.dtype, buffer=nl.sbuf)
        for i in nl.affine_range(4):
            total = nl.zeros((128, 128), dtype=nl.float32, buffer=nl.psum)
            for j in nl.affine_range(2):
                total += nisa.nc_matmul(loaded[:, nl.ds(128 * j, 128)], loaded[:, nl.ds(128 * i, 128)])
            result[:, nl.ds(128 * i, 128)] = nisa.tensor_copy(total)
        nl.store(out, result)
        return out

    merged, _ = both(kernel, X)
    assert count(merged, "tensor_copy") == 4


def test_tiles_of_transfers_stay_apart():
    """A public vector addition takes the time of its loads and its stores side by side (trn1, K0367)."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(32):
            nl.store(out[:, nl.ds(2 * i, 2)], nl.add(nl.load(x[:, nl.ds(2 * i, 2)]), 1.0))
        return out

    merged, _ = both(kernel, X[:, :64])
    assert count(merged, "tensor_scalar") == 32


def test_what_one_iteration_hands_to_the_next_is_not_merged():
    """A running sum in a loop that is declared independent, as sums may be, and a tile that is shared."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 66), dtype=x.dtype, buffer=nl.shared_hbm)
        loaded = nl.load(x)
        chain = nl.zeros((128, 65), dtype=x.dtype, buffer=nl.sbuf)
        total = nl.zeros((128, 1), dtype=x.dtype, buffer=nl.sbuf)
        for i in nl.affine_range(64):
            total += loaded[:, nl.ds(i, 1)]
        for i in nl.sequential_range(64):
            chain[:, nl.ds(i + 1, 1)] = nl.add(chain[:, nl.ds(i, 1)], loaded[:, nl.ds(i, 1)])
        nl.store(out[:, 0:65], chain)
        nl.store(out[:, 65:66], total)
        return out

    merged, apart = both(kernel, X)
    assert count(merged, "tensor_tensor") == count(apart, "tensor_tensor") == 128


def random_loops(seed):
    """Loops in loops over pieces of a few tiles: private results, shared tiles, pieces at equal distances or not."""
    rng = np.random.default_rng(seed)

    def body(tiles, i, j, width):
        kept = []
        for _ in range(rng.integers(1, 6)):
            a, b, c = (tiles[n] for n in rng.integers(0, 4, 3))
            at = [nl.ds(int(s) * i + int(o) * j, width) for s, o in zip(*rng.integers(0, width + 2, (2, 3)))]
            kind = rng.integers(0, 5)
            if kind == 0:
                kept.append(nl.multiply(a[:, at[0]], b[:, at[1]]))
            elif kind == 1:
                kept.append(nisa.tensor_reduce(np.add, a[:, at[0]], axis=[1]))
            elif kind == 2 and kept:
                c[:, nl.ds(width * i + 64 * j, kept[-1].shape[1])] = nl.add(kept[-1], 1.5)
            elif kind == 3 and kept:
                kept.append(nl.exp(kept[-1]))
            else:
                c[:, at[2]] = nisa.tensor_copy(a[:, at[0]])

    loops = [(*(int(n) for n in rng.integers((1, 2, 1), (4, 6, 4))), int(rng.integers(1 << 30))) for _ in range(3)]

    @nki.jit
    def kernel(x):
        nonlocal rng
        out = nl.ndarray((4, 128, 256), dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = [nl.load(x[:, nl.ds(256 * n, 256)]) for n in range(4)]
        for outer, inner, width, drawn in loops:
            for j in nl.affine_range(outer):
                for i in nl.affine_range(inner):
                    rng = np.random.default_rng(drawn)
                    body(tiles, i, j, width)
        for n in range(4):
            nl.store(out[n], tiles[n])
        return out

    return kernel


def memories(kernel, merge):
    """All tensors after the kernel, in program order and in the order of the timeline, and how long the kernel is."""
    with policy.use(merge=merge), checks(race="off"):
        trace, timeline = kernel.trace(0.1 * X), kernel.timeline(0.1 * X)
    found = []
    for order in (None, np.argsort(timeline.start, kind="stable")):
        memory = memory_of(trace, kernel.bind((0.1 * X,), {})[1])
        with np.errstate(all="ignore"):
            machine = Machine(chips.get(trace.routine.target), sbuf_bytes=trace.routine.sbuf_bytes)
            machine.call(trace.routine, memory, order=order)
        found.append(b"".join(np.asarray(m).tobytes() for m in memory))
    return found, len(trace.routine)


def test_random_loops_compute_the_same_bits():
    """Whatever is merged, and in either order; the loops race, so that what may not be merged is there, too."""
    saved = 0
    for seed in range(24):
        (expected, _), apart = memories(random_loops(seed), False)
        results, merged = memories(random_loops(seed), True)
        assert results == [expected] * 2, f"seed {seed}"
        saved += apart - merged
    assert saved > 100


def filled(columns, read_first=False, last=8):
    """A tile of zeros of which a loop fills some columns, and which is stored."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 128, columns), dtype=x.dtype, buffer=nl.shared_hbm)
        loaded = nl.load(x)
        result = nl.zeros((nl.par_dim(128), columns), dtype=x.dtype, buffer=nl.sbuf)
        nl.store(out[0], result if read_first else loaded[:, 0:columns])
        for i in nl.affine_range(last):
            result[:, nl.ds(64 * i, 64)] = nl.exp(loaded[:, nl.ds(64 * i, 64)])
        nl.store(out[1], result)
        return out

    return kernel


def test_zeros_that_are_overwritten_unread_are_not_written():
    for kernel, kept in (
        (filled(512), 0),
        (filled(512, read_first=True), 1),
        (filled(513), 1),
        (filled(512, last=7), 1),
    ):
        with policy.use(dead=False):
            expected = kernel(X)
            assert count(kernel.trace(X).routine, "memset") == 1
        assert count(kernel.trace(X).routine, "memset") == kept
        np.testing.assert_array_equal(kernel(X), expected)
