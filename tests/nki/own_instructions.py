# SPDX-License-Identifier: Apache-2.0
"""Instructions of this file's own, called in both dialects; test_nki_declared.py runs it in a process of its own."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import numpy as np
import pytest

import trnlab.nki.neuronxcc as older
from trnlab import isa, nki
from trnlab.errors import ConstraintError
from trnlab.isa.alu import alu_op, binary
from trnlab.isa.base import Dataflow, Engine, Instruction, OperandSpec, as_float, per_partition
from trnlab.nki import isa as nisa
from trnlab.nki import language as nl
from trnlab.nki.neuronxcc import isa as old_nisa
from trnlab.nki.neuronxcc import language as old_nl

RNG = np.random.default_rng(0)


class Shifted(Instruction):
    """dst = (data1 op data2) + by, by one number a row."""

    name = "shifted"
    opcode = 901
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR, Engine.GPSIMD)
    operands = (
        OperandSpec("dst", "dst"),
        OperandSpec("data1", "src"),
        OperandSpec("data2", "src"),
        OperandSpec("by", "src", shape=("P", "1"), immediate=True, optional=True),
    )
    attrs: ClassVar[dict[str, Any]] = {"op": "add", "by": 0.0}
    required = ("dst", "data1", "data2", "op")
    not_both_psum = ("data1", "data2")
    cost_kinds = ("vector.tensor_tensor",)

    def meaning(self, arrays, attrs):
        by = per_partition(arrays.get("by", attrs["by"]), arrays["dst"].ndim)
        return {"dst": binary(alu_op(attrs["op"]), arrays["data1"], arrays["data2"]) + by}

    def work(self, ops, attrs, engine):
        return self.streaming(ops, engine, flops=2, kind="tensor_tensor")


class Extent(Instruction):
    """dst = the smallest and the largest of each row."""

    name = "extent"
    opcode = 902
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (OperandSpec("dst", "dst", shape=("P", "2")), OperandSpec("data", "src"))
    cost_kinds = ("vector.tensor_copy",)

    def meaning(self, arrays, attrs):
        data = as_float(arrays["data"]).reshape(len(arrays["data"]), -1)
        return {"dst": np.stack([data.min(1), data.max(1)], 1).reshape(arrays["dst"].shape)}

    def work(self, ops, attrs, engine):
        return self.streaming({"data": ops["data"]}, engine, kind="tensor_copy")


class Reversed(Instruction):
    """dst = data with its rows in reverse."""

    name = "reversed_rows"
    opcode = 903
    engines = (Engine.GPSIMD,)
    operands = (OperandSpec("dst", "dst"), OperandSpec("data", "src"))
    cost_kinds = ("gpsimd.tensor_copy",)

    def meaning(self, arrays, attrs):
        return {"dst": as_float(arrays["data"])[::-1]}

    def work(self, ops, attrs, engine):
        return self.streaming(ops, engine, kind="tensor_copy")


for _kind in (Shifted, Extent, Reversed):
    isa.register(_kind)


def test_the_signature_is_that_of_the_declaration():
    """Destinations first, what is required without a default, then attributes, engine and name."""
    known = inspect.signature(nisa.shifted).parameters
    assert list(known) == ["dst", "data1", "data2", "op", "by", "engine", "name"]
    assert {n: p.default for n, p in known.items() if p.default is not p.empty} == {
        "by": 0.0,
        "engine": nisa.engine.unknown,
        "name": None,
    }
    assert list(inspect.signature(nisa.extent).parameters) == ["dst", "data", "name"]
    old = inspect.signature(old_nisa.shifted).parameters
    assert list(old) == ["data1", "data2", "op", "by", "engine", "dtype", "mask", "_"]
    assert [p.kind for p in old.values()][2:4] == [inspect.Parameter.POSITIONAL_OR_KEYWORD, old["mask"].kind]
    assert nisa.shifted.__doc__ == old_nisa.shifted.__doc__ == Shifted.__doc__
    assert nisa.shifted.__module__ == "trnlab.nki.isa"
    assert "def shifted(" in inspect.getsource(nisa.shifted)


def test_wrong_arguments_are_refused_as_those_of_any_function():
    with pytest.raises(TypeError, match=r"shifted\(\) got an unexpected keyword argument 'data3'"):
        nisa.shifted(1, 2, 3, op="add", data3=4)
    with pytest.raises(TypeError, match=r"shifted\(\) missing 1 required positional argument: 'op'"):
        nisa.shifted(1, 2, 3)
    for module in (nisa, old_nisa):
        with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'shiftd'"):
            module.shiftd  # noqa: B018
    with pytest.raises(AttributeError, match="exponential"):
        old_nisa.exponential  # noqa: B018


@nki.jit
def both(x, y, column):
    out = nl.ndarray((128, 66), dtype=x.dtype, buffer=nl.shared_hbm)
    total, ends = nl.ndarray((128, 64), nl.float32), nl.ndarray((128, 2), nl.float32)
    first = nisa.shifted(total, nl.load(x), nl.load(y), np.subtract, by=nl.load(column), name="first")
    nisa.extent(dst=ends, data=total).depends_on(first)
    nisa.shifted(dst=total, data1=total, data2=total, op=nl.maximum, by=1, engine=nisa.engine.gpsimd)
    nl.store(out[:, 0:64], total)
    nl.store(out[:, 64:66], ends)
    return out


@older.jit
def both_older(x, y, column):
    out = old_nl.ndarray((128, 66), dtype=x.dtype, buffer=old_nl.shared_hbm)
    total = old_nisa.shifted(old_nl.load(x), old_nl.load(y), np.subtract, by=old_nl.load(column))
    old_nl.store(out[:, 64:66], old_nisa.extent(total))
    old_nl.store(out[:, 0:64], old_nisa.shifted(total, total, op=np.maximum, by=1, engine=old_nisa.engine.gpsimd))
    return out


@pytest.mark.parametrize("kernel", [both, both_older])
def test_it_computes(kernel):
    x, y, column = (RNG.standard_normal((128, n), np.float32) for n in (64, 64, 1))
    total = x - y + column
    wanted = np.concatenate([total + 1, total.min(1, keepdims=True), total.max(1, keepdims=True)], axis=1)
    np.testing.assert_array_equal(kernel(x, y, column), wanted)


@older.jit
def masked(x, y):
    out = old_nl.ndarray((100, 66), dtype=x.dtype, buffer=old_nl.shared_hbm)
    rows, columns, two = old_nl.arange(128)[:, None], old_nl.arange(64)[None, :], old_nl.arange(2)[None, :]
    some = rows < 100
    x, y = (old_nl.load(t[rows, columns], mask=some) for t in (x, y))
    total = old_nisa.shifted(x, y, np.add, mask=some)
    old_nl.store(out[rows, columns], total, mask=some)
    old_nl.store(out[rows, 64 + two], old_nisa.extent(total, mask=some & (columns < 10)), mask=some)
    return out


def test_a_mask_bounds_what_is_computed_in_the_older_dialect():
    x, y = (RNG.standard_normal((100, 64), np.float32) for _ in range(2))
    total = x + y
    few = total[:, :10]
    wanted = np.concatenate([total, few.min(1, keepdims=True), few.max(1, keepdims=True)], axis=1)
    np.testing.assert_array_equal(masked(x, y), wanted)


@older.jit
def reversed_rows(x, rows):
    out = old_nl.ndarray(x.shape, dtype=x.dtype, buffer=old_nl.shared_hbm)
    mask = old_nl.arange(128)[:, None] < rows
    old_nl.store(out, old_nisa.reversed_rows(old_nl.load(x), mask=mask))
    return out


def test_a_mask_is_refused_where_it_is_not_known_what_depends_on_it():
    x = RNG.standard_normal((128, 64), np.float32)
    np.testing.assert_array_equal(reversed_rows(x, 128), x[::-1])
    with pytest.raises(ConstraintError, match="reversed_rows takes no mask") as refusal:
        reversed_rows(x, 100)
    assert refusal.value.code == "TRN411"


@older.jit
def counted(src):
    out = old_nl.ndarray((128, 9), dtype=old_nl.int32, buffer=old_nl.shared_hbm)
    where = old_nl.zeros((128, 9), dtype=old_nl.int32, buffer=old_nl.sbuf)
    assert old_nisa.nonzero_with_count(where, old_nl.load(src), index_offset=10) is None
    old_nl.store(out, where)
    return out


def test_destinations_of_sizes_that_do_not_follow_are_passed(monkeypatch):
    """In the older dialect too, which then returns nothing."""
    assert list(inspect.signature(old_nisa.topk).parameters)[:4] == ["val_dst", "idx_dst", "src", "n"]
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    src = np.zeros((128, 8), np.int32)
    src[0, 3] = 1
    assert counted(src)[0].tolist() == [13, -1, -1, -1, -1, -1, -1, -1, 1]
