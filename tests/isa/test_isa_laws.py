# SPDX-License-Identifier: Apache-2.0
"""Laws that every meaning obeys, over cases generated from the declarations, NaN and infinities included."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_cases import QUICK, Case, valid_cases

from tests.extent import examples
from trnlab import isa
from trnlab.isa.base import Dataflow, Instruction
from trnlab.numerics.rounding import widen
from trnlab.program.access import AP

Array = np.ndarray[Any, Any]


def contents(op: AP, rng: np.random.Generator, below: int | None = None) -> Array:
    """Something for an operand to hold, as `meaning` sees it: [P, F...]."""
    if op.dtype.is_integer:
        info = np.iinfo(op.dtype.numpy)
        high = info.max if below is None else below - 1
        return rng.integers(0 if below else info.min, high, op.shape, endpoint=True).astype(op.dtype.numpy)
    values = rng.standard_normal(op.shape).astype(np.float32)
    odd = rng.choice(np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38]), op.shape)
    values = np.where(rng.random(op.shape) < 0.1, odd, values)
    with np.errstate(all="ignore"):
        return widen(values.astype(op.dtype.numpy), op.dtype)


def padded(array: Array) -> Array:
    """The same elements with leading free dimensions of one, as the simulators hold them."""
    return array.reshape(array.shape[0], *(1,) * (5 - array.ndim), *array.shape[1:])


def indexed(case: Case, name: str) -> int | None:
    """For an operand that holds indices, how many rows or elements there are to name; None for any other."""
    if name == "indices":
        return case.ops["data"].free
    if case.instr.name == "local_gather":
        return case.ops["src_buffer"].free - case.attrs["num_elem_per_idx"] + 1 if name == "index" else None
    if name != "index":
        return None
    side = "dst" if case.attrs.get("indirect") == "dst" else "src0" if "src0" in case.ops else "src"
    adjacent = 1 if case.attrs.get("per_row", True) else case.ops["dst" if side == "src" else "src"].partitions
    return case.ops[side].partitions - adjacent + 1


@pytest.mark.parametrize("name", sorted(isa.REGISTRY))
def test_meaning_is_a_pure_function_of_the_elements(name: str) -> None:
    """Shapes as declared, no warning, sources untouched, the same bits for operands padded to four free dims."""

    @QUICK
    @given(case=valid_cases(name), seed=st.integers(0, 2**32))
    def check(case: Case, seed: int) -> None:
        rng = np.random.default_rng(seed)
        arrays = {n: contents(op, rng, indexed(case, n)) for n, op in case.ops.items()}
        if name == "sendrecv":
            arrays["received"] = arrays["src"].copy()
        before = {n: array.copy() for n, array in arrays.items()}
        attrs = {**case.instr.attrs, **case.attrs}
        results = case.instr.meaning(arrays, attrs)
        assert set(results) == {s.name for s in case.instr.operands if s.role == "dst" and s.name in case.ops}
        for n, array in arrays.items():
            np.testing.assert_array_equal(array, before[n])
        again = case.instr.meaning({n: padded(array) for n, array in arrays.items()}, attrs)
        for n, value in results.items():
            assert value.shape == arrays[n].shape
            assert again[n].shape == padded(arrays[n]).shape
            assert value.dtype == again[n].dtype
            assert value.reshape(-1).tobytes() == again[n].reshape(-1).tobytes()

    check()


FLOWS = (Dataflow.PARTITION, Dataflow.POINTWISE)


@pytest.mark.parametrize("name", [n for n in sorted(isa.REGISTRY) if isa.REGISTRY[n].dataflow in FLOWS])
def test_results_depend_on_no_more_than_the_dataflow_says(name: str) -> None:
    """One element of a source is changed: only its partition, or only its own element, may be another afterwards."""

    @settings(QUICK, max_examples=examples(25))
    @given(case=valid_cases(name), seed=st.integers(0, 2**32))
    def check(case: Case, seed: int) -> None:
        if case.instr.is_dma and "index" in case.ops:
            return  # takes any row
        rng = np.random.default_rng(seed)
        arrays = {n: ordinary(op, rng, indexed(case, n)) for n, op in case.ops.items()}
        arrays |= {"received": arrays["src"].copy()} if name == "sendrecv" else {}
        attrs = {**case.instr.attrs, **case.attrs}
        before = case.instr.meaning(arrays, attrs)
        sources = [
            s.name for s in case.instr.operands if s.role == "src" and s.name in case.ops and "ind" not in s.name
        ]
        for n, at in itertools.product(sources, (0, int(rng.integers(1 << 20)), -1)):
            source = arrays[n].copy()
            at %= source.size
            source.reshape(-1)[at] += 1
            after = case.instr.meaning({**arrays, n: source}, attrs)
            for destination in case.instr.operands:
                if destination.name in before and not destination.state:
                    changed = differing(before[destination.name], after[destination.name])
                    assert may_change(case.instr, source, at, before[destination.name], changed)

    check()


def ordinary(op: AP, rng: np.random.Generator, below: int | None = None) -> Array:
    """Small numbers, of which each has its part in a sum or a product."""
    whole = rng.integers(0, 4 if below is None else below, op.shape)
    return whole.astype(op.dtype.numpy) if op.dtype.is_integer else widen(whole.astype(op.dtype.numpy), op.dtype)


def differing(one: Array, other: Array) -> Array:
    """Flat indices of elements whose bits are not the same."""
    bits = f"u{one.dtype.itemsize}"
    found: Array = np.flatnonzero(one.reshape(-1).view(bits) != other.reshape(-1).view(bits))
    return found


def may_change(instr: Instruction, source: Array, at: int, result: Array, changed: Array) -> bool:
    """Whether a source's element `at` may have changed these elements of the result."""
    if instr.dataflow is Dataflow.POINTWISE and result.size == source.size:
        return set(changed.tolist()) <= {at}
    if len(result) != len(source):
        return True  # no partition of its own to keep to
    row = at // (source.size // len(source))
    return set((changed // (result.size // len(result))).tolist()) <= {row}
