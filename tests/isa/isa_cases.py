# SPDX-License-Identifier: Apache-2.0
"""Operands for tests of instructions, and valid cases generated from the instructions' own declarations."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from trnlab import chips, isa
from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError
from trnlab.isa.activations import ACTIVATIONS
from trnlab.isa.alu import ALU, AluOp
from trnlab.isa.base import CODES, INT32, Engine, Instruction, Memory, OperandSpec
from trnlab.isa.rules import MAX_FREE, allowed_starts
from trnlab.numerics.dtypes import DType, dtype, float32
from trnlab.numerics.rounding import store, widen
from trnlab.program.access import AP, Buffer, whole

QUICK = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CHIPS = [chips.get(name) for name in ("trn1", "trn2")]


def tile(
    shape: tuple[int, ...], dt: DType | str = float32, memory: Memory = Memory.SBUF, first_partition: int = 0
) -> AP:
    """A whole tile, or a whole HBM tensor, of its own."""
    dt = dtype(dt)
    hbm = memory is Memory.HBM
    nbytes = prod(shape if hbm else shape[1:]) * dt.itemsize
    partitions = 1 if hbm else shape[0]
    return whole(Buffer(0, "t", memory, shape, dt, nbytes, first_partition=first_partition, partitions=partitions))


def compute(name: str, dst: dict[str, Any], src: dict[str, Any], /, **attrs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """What the instruction leaves in its destinations.

    dst: name -> (shape, format) or (former contents, format); src: name -> an array or (array, format).
    """
    instr = isa.REGISTRY[name]
    formats = {n: dtype(spec[1]) for n, spec in dst.items()}
    arrays = {n: old(spec[0], formats[n]) for n, spec in dst.items()}
    for n, value in src.items():
        array, dt = value if isinstance(value, tuple) else (value, None)
        array = np.asarray(array)
        arrays[n] = widen(array, dtype(dt)) if dt is not None and dtype(dt).is_float else array
    results = instr.meaning(arrays, {**instr.attrs, **attrs})
    assert set(results) == set(dst)
    for n, value in results.items():
        assert value.shape == arrays[n].shape, f"{name}: {n} has shape {value.shape}"
        assert value.dtype == np.float32 or value.dtype.kind in "iu", f"{name}: {n} is {value.dtype}"
    return {n: store(value, formats[n]) for n, value in results.items()}


def old(spec: Any, dt: DType) -> np.ndarray[Any, Any]:
    """A destination as `meaning` sees it: its contents, or anything of its shape."""
    if isinstance(spec, np.ndarray):
        return widen(spec, dt) if dt.is_float else spec
    return np.full(spec, np.nan if dt.is_float else 77, np.float32 if dt.is_float else dt.numpy)


@dataclass
class Case:
    """One instruction with operands, attributes and engine."""

    instr: Instruction
    chip: Chip
    engine: Engine
    ops: dict[str, AP]
    attrs: dict[str, Any] = field(default_factory=dict)

    def validate(self) -> isa.Work:
        """The check that the builder makes."""
        return isa.validate(self.instr, self.ops, {**self.instr.attrs, **self.attrs}, self.engine, self.chip, None)


@st.composite
def valid_cases(draw: st.DrawFn, name: str) -> Case:
    """A case that the instruction's declarations allow."""
    instr, chip = isa.REGISTRY[name], draw(st.sampled_from(CHIPS))
    engine = draw(st.sampled_from(instr.engines_on(chip)))
    attrs = draw(ATTRIBUTES.get(name, _no_attrs)(engine, chip))
    specs = {s.name: s for s in instr.operands if not _left_out(draw, s, attrs)}
    formats = draw(_formats(instr, specs, engine, chip, attrs))
    memories = draw(_memories(instr, specs, engine))
    sizes = draw(_sizes(instr, specs, engine, memories))
    ops = {}
    for n, spec in specs.items():
        ops[n] = draw(_operand(spec, sizes, formats[n], memories[n], instr))
    if name == "dma_copy":
        ops, engine = draw(_transfers(engine))
    case = Case(instr, chip, engine, ops, {name: value for name, value in attrs.items() if name not in ops})
    if name in ("iota", "affine_select"):
        case.attrs["pattern"] = tuple((draw(st.integers(-4, 4)), count) for _, count in ops["dst"].dims)
    if name == "tensor_reduce":
        case.ops["dst"] = draw(_reduced(case))
    return case


def _left_out(draw: st.DrawFn, spec: OperandSpec, attrs: dict[str, Any]) -> bool:
    if spec.immediate and attrs.get(spec.name) is not None:
        return True
    if spec.name in ("operand0", "operand1") and spec.optional:
        return spec.name in attrs  # an explicit None
    return spec.optional and ((attrs.get("op") == "reciprocal" and spec.name == "bias") or draw(st.booleans()))


@st.composite
def _formats(
    draw: st.DrawFn,
    instr: Instruction,
    specs: dict[str, OperandSpec],
    engine: Engine,
    chip: Chip,
    attrs: dict[str, Any],
) -> dict[str, str]:
    """A format per operand, under the rules between operands."""
    formats = {n: draw(st.sampled_from(sorted(spec.dtypes))) for n, spec in specs.items()}
    used = [ALU[attrs[key]] for key in ("op", "op0") if attrs.get(key) in ALU and "pattern" not in attrs]
    if instr.name == "activation":
        used = []
    if any(op.bitvec for op in used):
        shared = draw(st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32"]))
        formats = dict.fromkeys(formats, shared)
    elif instr.name == "tensor_scalar":
        formats |= {n: "float32" for n in formats if n.startswith("operand")}
    elif instr.name == "tensor_tensor" and (engine is not Engine.GPSIMD or not used[0].integer):
        formats["data2"] = "float32" if formats["data1"] in INT32 else formats["data2"]
    if instr.name == "nc_matmul":
        groups = [["float32", "tfloat32"], ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"]]
        group = draw(st.sampled_from(groups))
        formats |= {n: draw(st.sampled_from(group)) for n in ("stationary", "moving")}
    if instr.name == "nc_transpose" and engine is Engine.TENSOR:
        floats = ["float32", "bfloat16", "float16"]
        formats["dst"] = draw(st.sampled_from([*floats, "int32"] if chip.has("pe_transpose") else floats))
    for n in instr.same_dtype:
        if n in formats:
            formats[n] = formats["dst"]
    return formats


@st.composite
def _memories(
    draw: st.DrawFn, instr: Instruction, specs: dict[str, OperandSpec], engine: Engine
) -> dict[str, Memory]:
    found: dict[str, Memory] = {}
    for n, spec in specs.items():
        allowed = set(spec.memories) - ({Memory.PSUM} if engine is Engine.GPSIMD else set())
        others = [found[m] for m in instr.not_both_psum if m in found and n in instr.not_both_psum]
        if Memory.PSUM in others:
            allowed.discard(Memory.PSUM)
        found[n] = draw(st.sampled_from(sorted(allowed)))
    if instr.name == "nc_transpose" and engine is Engine.TENSOR:
        found = {"dst": Memory.PSUM, "data": Memory.SBUF}
    return found


@st.composite
def _sizes(
    draw: st.DrawFn, instr: Instruction, specs: dict[str, OperandSpec], engine: Engine, memories: dict[str, Memory]
) -> dict[str, tuple[int, ...]]:
    """Each letter's size; as a free size it may be split into several dimensions."""
    letters = {letter for spec in specs.values() for letter in spec.shape if letter}
    rows = {spec.shape[0] for spec in specs.values()}
    sizes = {}
    for letter in sorted(letters):
        limit = min(instr.sizes.get(letter, 128 if letter in rows else 600), 128 if letter in rows else 1 << 16)
        if instr.name == "nc_transpose" and engine is Engine.VECTOR:
            limit = 32
        size = draw(st.one_of(st.integers(1, limit), st.just(limit)))
        sizes[letter] = (size,)
        if letter not in rows and draw(st.booleans()):
            inner = draw(st.sampled_from([d for d in (1, 2, 3, 4, 8) if size % d == 0]))
            sizes[letter] = (size // inner, inner)
    sizes["1"] = (1,)
    return sizes


@st.composite
def _operand(
    draw: st.DrawFn,
    spec: OperandSpec,
    sizes: dict[str, tuple[int, ...]],
    dt: str,
    memory: Memory,
    instr: Instruction,
) -> AP:
    if not spec.shape[0]:
        return tile((1, 1), dt, memory)
    partitions, free = sizes[spec.shape[0]][0], sizes[spec.shape[1]]
    first = draw(st.sampled_from(allowed_starts(partitions)))
    roomy = prod(free) * 3 <= (512 if memory is Memory.PSUM else MAX_FREE[memory])  # stay within one PSUM bank
    gap = draw(st.integers(1, 3)) if roomy else 1
    strided = tile((partitions, *free[:-1], free[-1] * gap), dt, memory, first)
    return strided.with_dims(*strided.dims[:-1], (gap, free[-1]))


@st.composite
def _reduced(draw: st.DrawFn, case: Case) -> AP:
    data, axes = case.ops["data"], draw(st.integers(1, len(case.ops["data"].dims)))
    case.attrs["axes"] = axes
    left = tuple(count for _, count in data.dims[: len(data.dims) - axes])
    return tile(
        (data.partitions, *(left or (1,))), case.ops["dst"].dtype, case.ops["dst"].memory, data.first_partition
    )


@st.composite
def _transfers(draw: st.DrawFn, engine: Engine) -> tuple[dict[str, AP], Engine]:
    rows, free = draw(st.integers(1, 128)), draw(st.integers(1, 64))
    dts = [draw(st.sampled_from(["float32", "bfloat16", "int32", "uint8"])) for _ in range(2)]
    if draw(st.booleans()):
        table = draw(st.integers(1, 1000))
        ops = {"dst": tile((rows, free), dts[0]), "src": tile((table, free), dts[1], Memory.HBM)}
        ops["index"] = tile((rows, 1), draw(st.sampled_from(sorted(INT32))))
        return ops, Engine.GPSIMD
    places = draw(st.sampled_from([(a, b) for a in (Memory.HBM, Memory.SBUF) for b in (Memory.HBM, Memory.SBUF)]))
    start = draw(st.integers(0, 128 - rows))
    flat = tile((rows * free, 1), dts[1], Memory.HBM) if places[1] is Memory.HBM else tile((rows, free), dts[1])
    dst = tile((rows, free), dts[0], places[0], start if places[0] is Memory.SBUF else 0)
    return {"dst": dst, "src": flat}, engine


def _no_attrs(engine: Engine, chip: Chip) -> st.SearchStrategy[dict[str, Any]]:
    return st.just({}).map(dict)


def _operators(engine: Engine, chip: Chip, **wanted: bool) -> list[str]:
    def fits(op: AluOp) -> bool:
        return engine in op.engines and op.feature is None and all(getattr(op, k) is v for k, v in wanted.items())

    return [op.name for op in ALU.values() if fits(op)]


_numbers = st.floats(-100, 100, width=32)


@st.composite
def _tensor_scalar_attrs(draw: st.DrawFn, engine: Engine, chip: Chip) -> dict[str, Any]:
    if engine is Engine.SCALAR:
        names = draw(st.sampled_from([("multiply",), ("add",), ("multiply", "add")]))
    elif engine is Engine.GPSIMD:
        names = draw(st.sampled_from([("rsqrt",), ("add", "rsqrt"), ("rsqrt", "multiply")]))
    else:
        legal = _operators(engine, chip, bitvec=draw(st.booleans()))
        names = tuple(draw(st.lists(st.sampled_from(legal), min_size=1, max_size=2)))
    attrs: dict[str, Any] = {f"op{i}": n for i, n in enumerate(names)}
    for i in range(2):
        bits = i < len(names) and ALU[names[i]].bitvec
        if i >= len(names) or ALU[names[i]].unary:
            attrs[f"operand{i}"] = None
        elif draw(st.booleans()):
            attrs[f"operand{i}"] = draw(st.integers(0, 31) if bits else _numbers)
        if engine is Engine.VECTOR:
            attrs[f"reverse{i}"] = draw(st.booleans())
    return attrs


def _stt_attrs(engine: Engine, chip: Chip) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(_operators(engine, chip, bitvec=False, unary=False))
    flags = {"reverse0": st.booleans(), "reverse1": st.booleans()}
    return st.fixed_dictionaries({"op0": names, "op1": names, **flags}, optional={"operand0": _numbers})


def _activation_attrs(engine: Engine, chip: Chip) -> st.SearchStrategy[dict[str, Any]]:
    plain = {
        "op": st.sampled_from([n for n in ACTIVATIONS if n != "reciprocal"]),
        "scale": st.one_of(_numbers, st.none()),
    }
    bias = {"bias": _numbers if chip.has("scalar_bias_immediate") else st.just(0.0)}
    return st.one_of(st.just({"op": "reciprocal"}).map(dict), st.fixed_dictionaries(plain, optional=bias))


_ramp = {"offset": st.integers(-1000, 1000), "channel_multiplier": st.integers(-9, 9), "pattern": st.just(())}
_compare = st.sampled_from(["is_equal", "not_equal", "is_gt", "greater_equal", "less", "is_le"])
ATTRIBUTES: dict[str, Any] = {
    "nc_matmul": lambda e, c: st.fixed_dictionaries({"accumulate": st.booleans(), "stop": st.booleans()}),
    "activation": _activation_attrs,
    "memset": lambda e, c: st.fixed_dictionaries({"value": st.sampled_from([0, 0.0, 1, 100.0])}),
    "tensor_tensor": lambda e, c: st.fixed_dictionaries({"op": st.sampled_from(_operators(e, c, unary=False))}),
    "tensor_scalar": _tensor_scalar_attrs,
    "scalar_tensor_tensor": _stt_attrs,
    "tensor_reduce": lambda e, c: st.fixed_dictionaries({"op": st.sampled_from(_operators(e, c, reduces=True))}),
    "iota": lambda e, c: st.fixed_dictionaries(_ramp),
    "affine_select": lambda e, c: st.fixed_dictionaries({**_ramp, "cmp_op": _compare, "on_false": _numbers}),
    "select_reduce": lambda e, c: st.fixed_dictionaries(
        {"reverse_pred": st.booleans()}, optional={"on_false": _numbers}
    ),
    "tensor_copy_predicated": lambda e, c: st.fixed_dictionaries({}, optional={"src": st.integers(0, 100)}),
    "dropout": lambda e, c: st.fixed_dictionaries({"seed": st.integers(0, 9)}, optional={"prob": st.floats(0, 1)}),
    "rng": lambda e, c: st.fixed_dictionaries({}, optional={"seed": st.integers(0, 1 << 32)}),
}


def refused(case: Case, *codes: str) -> ConstraintError:
    """The error of a case that must be refused, complete and with one of the codes."""
    with pytest.raises(ConstraintError) as caught:
        case.validate()
    error = caught.value
    assert error.code in codes, f"{error.code} instead of {codes}: {error}"
    assert error.code in CODES
    assert error.what.startswith(f"{case.instr.name}: ")
    assert error.limit is not None
    assert error.chip == case.chip.name
    assert error.remedy
    return error
