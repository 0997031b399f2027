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

from tests.extent import examples
from trnlab import chips, isa
from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError
from trnlab.isa.activations import ACTIVATIONS
from trnlab.isa.alu import ALU, AluOp
from trnlab.isa.base import ANY_DTYPE, CODES, INT32, Engine, Instruction, Memory, OperandSpec
from trnlab.isa.collectives.collective import CollectiveInstruction
from trnlab.isa.dma.dma_transpose import AXES
from trnlab.isa.elementwise.activate2 import COMBINATIONS
from trnlab.isa.random.random_streams import KEY_WORDS, state_words
from trnlab.isa.rules import MAX_FREE, allowed_starts
from trnlab.numerics.dtypes import DType, dtype, float32
from trnlab.numerics.rounding import store, widen
from trnlab.program.access import AP, Buffer, whole

QUICK = settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CHIPS = [chips.get(name) for name in ("trn1", "trn2", "trn3")]


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
    instr = isa.REGISTRY[name]
    chip = draw(st.sampled_from([chip for chip in CHIPS if instr.exists_on(chip)]))
    engine = draw(st.sampled_from(instr.engines_on(chip)))
    if name in WHOLE_CASES:
        return draw(WHOLE_CASES[name](instr, chip, engine))
    attrs = draw(ATTRIBUTES.get(name, _no_attrs)(engine, chip))
    specs = {s.name: s for s in instr.operands if not _left_out(draw, s, attrs)}
    formats = draw(_formats(instr, specs, engine, chip, attrs))
    memories = draw(_memories(instr, specs, engine))
    sizes = draw(_sizes(instr, specs, engine, memories))
    sizes["W"] = (state_words(engine, chip),)
    if instr.name == "rng":
        sizes["K"] = (draw(st.sampled_from(KEY_WORDS)),)
    ops = {}
    for n, spec in specs.items():
        ops[n] = draw(_operand(spec, sizes, formats[n], memories[n], instr))
    attrs.pop("loads_from", None)
    case = Case(instr, chip, engine, ops, {name: value for name, value in attrs.items() if name not in ops})
    if name in ("iota", "affine_select"):
        case.attrs["pattern"] = tuple((draw(st.integers(-4, 4)), count) for _, count in ops["dst"].dims)
    if name == "tensor_reduce":
        case.ops["dst"] = draw(_reduced(case))
    if name == "memset" and formats["dst"].endswith("_x4"):
        case.attrs["value"] = 0  # packed formats are filled with nothing else
    return case


def _left_out(draw: st.DrawFn, spec: OperandSpec, attrs: dict[str, Any]) -> bool:
    command = attrs.get("reduce_cmd")
    if spec.index_of:
        return True  # tests/nki/test_nki_indirect.py
    if spec.name == "accumulators" and command in ("reduce", "idle"):
        return False
    if spec.name == "reduce_res" and command == "idle":
        return True
    if spec.name == attrs.get("loads_from"):
        return bool(command != "load_reduce")
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
    if attrs.get("op") in ("bitwise_or", "bitwise_and"):
        used = [ALU[attrs["op"]]]
    if any(op.bitvec for op in used):
        shared = draw(st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32"]))
        formats = dict.fromkeys(formats, shared)
    elif instr.name == "tensor_scalar":
        formats |= {n: "float32" for n in formats if n.startswith("operand")}
    elif instr.name == "tensor_tensor" and (engine is not Engine.GPSIMD or not used[0].integer):
        formats["data2"] = "float32" if formats["data1"] in INT32 else formats["data2"]
    if instr.name in ("tensor_copy", "dropout"):
        formats |= {n: "float32" for n in formats if n == "prob"}
        packed = {formats["dst"]} if formats["dst"].endswith("_x4") else ANY_DTYPE
        formats |= {n: draw(st.sampled_from(sorted(packed))) for n in formats if n == "src"}
    if instr.name in ("register_load", "register_store"):
        group = ["float32"] if "float32" in formats.values() else None
        formats = dict.fromkeys(formats, "float32") if group else formats
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
        if letter.isdigit():
            sizes[letter] = (int(letter),)
            continue
        limit = min(instr.sizes.get(letter, 128 if letter in rows else 600), 128 if letter in rows else 600)
        if instr.name == "nc_transpose" and engine is Engine.VECTOR:
            limit = 32
        least, step = instr.least.get(letter, 1), instr.multiples.get(letter, 1)
        size = draw(st.one_of(st.integers(-(-least // step), limit // step), st.just(limit // step))) * step
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
    if memory is Memory.HBM:
        return tile((partitions, *free), dt, memory)
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


def _no_attrs(engine: Engine, chip: Chip) -> st.SearchStrategy[dict[str, Any]]:
    return st.just({}).map(dict)


def _operators(engine: Engine, chip: Chip, **wanted: bool) -> list[str]:
    def fits(op: AluOp) -> bool:
        return engine in op.engines and op.feature is None and all(getattr(op, k) is v for k, v in wanted.items())

    return [op.name for op in ALU.values() if fits(op)]


def _on(chip: Chip, **wanted: bool) -> list[str]:
    """Operators of VectorE on a chip, those of later generations where it has them."""
    later = [op.name for op in ALU.values() if op.feature is not None and chip.has(op.feature)]
    later = [n for n in later if all(getattr(ALU[n], k) is v for k, v in wanted.items())]
    return _operators(Engine.VECTOR, chip, **wanted) + later


_numbers = st.floats(-100, 100, width=32)


@st.composite
def _tensor_scalar_attrs(draw: st.DrawFn, engine: Engine, chip: Chip) -> dict[str, Any]:
    if engine is Engine.SCALAR:
        names = draw(st.sampled_from([("multiply",), ("add",), ("multiply", "add")]))
    elif engine is Engine.GPSIMD:
        names = draw(st.sampled_from([("rsqrt",), ("add", "rsqrt"), ("rsqrt", "multiply")]))
    else:
        legal = _on(chip, bitvec=draw(st.booleans()))
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


def _commands(*names: str, loads_from: str = "reduce_init") -> dict[str, Any]:
    """reduce_cmd, and the operand that load_reduce starts from."""
    return {"reduce_cmd": st.sampled_from(names), "loads_from": st.just(loads_from)}


def _activate2_attrs(engine: Engine, chip: Chip) -> st.SearchStrategy[dict[str, Any]]:
    def combined(pair: tuple[str, str], reverse: tuple[bool, bool]) -> dict[str, Any]:
        flags = {f"reverse{i}": reverse[i] and pair[i] != "bypass" for i in range(2)}
        return {"op0": pair[0], "op1": pair[1], **flags}

    operators = st.builds(combined, st.sampled_from(COMBINATIONS), st.tuples(st.booleans(), st.booleans()))
    rest = st.fixed_dictionaries(
        {
            "op": st.sampled_from([*(n for n in ACTIVATIONS if n != "reciprocal"), "prelu"]),
            "reduce_op": st.sampled_from(["add", "maximum", "min", "abs_max", "abs_min"]),
            **_commands("idle", "reset", "reduce", "reset_reduce"),
        },
        optional={"imm0": _numbers, "imm1": _numbers, "relu_param": _numbers},
    )
    return st.builds(lambda a, b: {**a, **b}, operators, rest)


def _shuffles(engine: Engine, chip: Chip) -> st.SearchStrategy[dict[str, Any]]:
    row = st.sampled_from([*range(32), 255])
    return st.fixed_dictionaries({"shuffle_mask": st.lists(row, min_size=32, max_size=32).map(tuple)})


_ramp = {"offset": st.integers(-1000, 1000), "channel_multiplier": st.integers(-9, 9), "pattern": st.just(())}
_compare = st.sampled_from(["is_equal", "not_equal", "is_gt", "greater_equal", "less", "is_le"])
_counts = ("reset_reduce", "reduce", "load_reduce")
ATTRIBUTES: dict[str, Any] = {
    "activate2": _activate2_attrs,
    "activation_reduce": lambda e, c: st.fixed_dictionaries({"op": st.sampled_from(["exp", "gelu", "square"])}),
    "exponential": lambda e, c: st.fixed_dictionaries(
        _commands("idle", *_counts), optional={"max_value": _numbers, "reduce_init": st.none()}
    ),
    "range_select": lambda e, c: st.fixed_dictionaries(
        {
            "comp_op0": st.sampled_from(["greater_equal", "is_gt", "equal"]),
            "comp_op1": st.sampled_from(["less", "is_le"]),
            "range_start": st.integers(-1000, 1000),
            **_commands("idle", "reset_reduce", "reduce"),
        }
    ),
    "tensor_scalar_reduce": lambda e, c: st.fixed_dictionaries(
        {
            "op0": st.sampled_from(_on(c, bitvec=False, unary=False)),
            "reduce_op": st.sampled_from(["add", "multiply", "maximum", "min"]),
            "reduce_res_negate": st.booleans(),
            **_commands(*_counts),
        },
        optional={"operand0": _numbers},
    ),
    "tensor_scalar_cumulative": lambda e, c: st.fixed_dictionaries(
        {
            "op0": st.sampled_from(_on(c, bitvec=False)),
            "op1": st.sampled_from(["add", "subtract", "multiply", "maximum", "min"]),
            **_commands(*_counts, loads_from="imm1"),
        },
        optional={"imm0": _numbers},
    ),
    "tensor_tensor_scan": lambda e, c: st.fixed_dictionaries(
        {
            "op0": st.sampled_from(_on(c, bitvec=False, unary=False)),
            "op1": st.sampled_from(_on(c, bitvec=False, unary=False)),
            "reverse0": st.booleans(),
            "reverse1": st.booleans(),
        },
        optional={"initial": _numbers},
    ),
    "tensor_partition_reduce": lambda e, c: st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "average", "max", "maximum", "bitwise_or", "bitwise_and"])}
    ),
    "nc_match_replace8": lambda e, c: st.fixed_dictionaries({"imm": _numbers}),
    "rand2": lambda e, c: st.fixed_dictionaries(
        {"seed": st.integers(0, 9)}, optional={"min": st.floats(-9, 0, width=32), "max": st.floats(1, 9, width=32)}
    ),
    "register_alloc": lambda e, c: st.fixed_dictionaries({"x": st.one_of(st.none(), st.integers(0, 1000))}),
    "register_move": lambda e, c: st.fixed_dictionaries({}, optional={"src": st.integers(0, 1000)}),
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


# -- cases whose operands depend on each other --------------------------------------------------------------------
Cases = st.SearchStrategy[Case]


@st.composite
def _transfers(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    rows, free = draw(st.integers(1, 128)), draw(st.integers(1, 64))
    dts = [draw(st.sampled_from(["float32", "bfloat16", "int32", "uint8"])) for _ in range(2)]
    attrs: dict[str, Any] = {"oob_mode": draw(st.sampled_from(["error", "skip"]))}
    if chip.has("dma_priority"):
        attrs["priority"] = draw(st.sampled_from([None, 0, 3]))
    if draw(st.booleans()):
        attrs["indirect"], attrs["per_row"] = draw(st.sampled_from(["src", "dst"])), draw(st.booleans())
        table = draw(st.integers(1 if attrs["per_row"] else rows, 1000))
        pair = {attrs["indirect"]: tile((table, free), dts[0], Memory.HBM)}
        pair["dst" if attrs["indirect"] == "src" else "src"] = tile((rows, free), dts[1])
        index = tile((rows if attrs["per_row"] else 1, 1), draw(st.sampled_from(sorted(INT32))))
        return Case(instr, chip, Engine.GPSIMD, {**pair, "index": index}, attrs)
    if chip.has("hwdge") and engine in (Engine.SYNC, Engine.SCALAR):
        attrs["dge_mode"] = draw(st.sampled_from(["unknown", "hwdge", "none"]))
        dts[1] = dts[0] if attrs["dge_mode"] == "hwdge" else dts[1]
    places = draw(st.sampled_from([(a, b) for a in (Memory.HBM, Memory.SBUF) for b in (Memory.HBM, Memory.SBUF)]))
    start = draw(st.integers(0, 128 - rows))
    flat = tile((rows * free, 1), dts[1], Memory.HBM) if places[1] is Memory.HBM else tile((rows, free), dts[1])
    dst = tile((rows, free), dts[0], places[0], start if places[0] is Memory.SBUF else 0)
    return Case(instr, chip, engine, {"dst": dst, "src": flat}, attrs)


@st.composite
def _transposes(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    rank, dt = draw(st.integers(2, 4)), draw(st.sampled_from(["bfloat16", "uint16", "float16"]))
    dims = [
        16 * draw(st.integers(1, 8)),
        *(draw(st.integers(1, 6)) for _ in range(rank - 2)),
        draw(st.integers(1, 64)),
    ]
    axes = AXES[rank - 2]
    dst = tile(tuple(dims[axis] for axis in axes), dt)
    if chip.has("dma_transpose") and draw(st.booleans()):
        if rank == 4:
            dims[1] = 1
            dst = tile(tuple(dims[axis] for axis in axes), dt)
        table = tile((draw(st.integers(1, 300)), *dims[1:]), dt, Memory.HBM)
        index = tile((128, draw(st.integers(1, 3))), "uint32")
        attrs = {"axes": axes, "oob_mode": draw(st.sampled_from(["error", "skip"]))}
        return Case(instr, chip, Engine.GPSIMD, {"dst": dst, "src": table, "index": index}, attrs)
    memory = draw(st.sampled_from([Memory.HBM, Memory.SBUF]))
    return Case(instr, chip, engine, {"dst": dst, "src": tile(tuple(dims), dt, memory)}, {"axes": axes})


@st.composite
def _sums(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    rows, free = draw(st.integers(1, 128)), draw(st.integers(1, 64))
    dts = [draw(st.sampled_from(["float32", "bfloat16", "int16"])) for _ in range(3)]
    side = draw(st.sampled_from([None, "src", "dst"]))
    if side is None:
        sources = {f"src{i}": tile((rows, free), dts[i % 3]) for i in range(draw(st.integers(1, 16)))}
        return Case(instr, chip, engine, {"dst": tile((rows, free), "float32"), **sources}, {})
    table, few = tile((draw(st.integers(rows, 500)), free), dts[0], Memory.HBM), tile((rows, free), dts[1])
    pair = {"dst": table, "src0": few} if side == "dst" else {"dst": few, "src0": table}
    attrs = {"indirect": side, "oob_mode": draw(st.sampled_from(["error", "skip"]))}
    return Case(instr, chip, Engine.GPSIMD, {**pair, "index": tile((rows, 1), "int32")}, attrs)


@st.composite
def _gathers(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    lanes, columns = 16 * draw(st.integers(1, 8)), draw(st.integers(1, 6))
    run = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    count = draw(st.one_of(st.none(), st.integers(1, 16 * columns)))
    dt = draw(st.sampled_from(["float32", "bfloat16", "int8", "float8_e4m3fn_x4"]))
    first = draw(st.sampled_from(allowed_starts(lanes)))
    length = run * (16 * columns if count is None else count)
    ops = {
        "dst": tile((lanes, length), dt, first_partition=first),
        "src_buffer": tile((lanes, draw(st.integers(run, 200))), dt, first_partition=first),
        "index": tile((lanes, columns), "uint16", first_partition=first),
    }
    return Case(instr, chip, engine, ops, {"num_elem_per_idx": run, "num_valid_indices": count})


@st.composite
def _double_rows(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    """A matmul in one of its modes, or a plain one."""
    mode = draw(st.sampled_from(["plain", "tile", "double_row", "transpose", "onezero", "long"]))
    k, m, n = draw(st.integers(1, 32)), draw(st.integers(1, 32)), draw(st.integers(1, 512))
    attrs: dict[str, Any] = {"accumulate": draw(st.booleans()), "stop": draw(st.booleans())}
    dt = draw(st.sampled_from(["float32", "tfloat32", "bfloat16", "float16", "float8_e5m2"]))
    into = draw(st.sampled_from(["float32", "bfloat16"])) if chip.has("bf16_psum") else "float32"
    if mode == "tile":
        smallest = 32 if chip.has("pe_tiles_32") else 64
        attrs |= {"tile_size": (smallest, 64), "tile_position": (smallest, 64)}
    elif mode == "double_row" and chip.has("fp8_double_row"):
        fp8 = [draw(st.sampled_from(["float8_e4m3", "float8_e5m2"])) for _ in range(2)]
        ops = {"stationary": tile((k, 2, m), fp8[0]), "moving": tile((k, 2, n), fp8[1])}
        return Case(
            instr, chip, engine, {"dst": tile((m, n), into, Memory.PSUM), **ops}, {**attrs, "perf_mode": mode}
        )
    elif mode == "transpose":
        attrs |= {"is_transpose": True, "accumulate": False}
        into = dt if chip.has("pe_transpose") else "float32"
    elif mode == "onezero":
        attrs["is_moving_onezero"] = True
    elif mode == "long" and chip.has("long_matmul"):
        n = 4096 if into == "float32" else 8192
    ops = {"stationary": tile((k, m), dt), "moving": tile((k, n), dt)}
    return Case(instr, chip, engine, {"dst": tile((m, n), into, Memory.PSUM), **ops}, attrs)


@st.composite
def _microscaled(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    k, m, n = 32 * draw(st.integers(1, 4)), 2 * draw(st.integers(1, 64)), draw(st.integers(1, 64))
    formats = [draw(st.sampled_from(["float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4"])) for _ in range(2)]
    scales = draw(st.sampled_from(["float8_e8m0fnu", "uint8"]))
    offset = draw(st.sampled_from([0, 4, 8, 12]))
    into = draw(st.sampled_from(["float32", "bfloat16"]))
    ops = {
        "dst": tile((m, n), into, Memory.PSUM),
        "stationary": tile((k, m), formats[0]),
        "moving": tile((k, n), formats[1]),
        "stationary_scale": tile((k - 28, m), scales, first_partition=offset),
        "moving_scale": tile((k - 28, n), scales, first_partition=offset),
    }
    attrs = {"stationary_format": formats[0], "moving_format": formats[1], "accumulate": draw(st.booleans())}
    return Case(instr, chip, engine, ops, attrs)


@st.composite
def _quantized(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    lanes, free = 32 * draw(st.integers(1, 4)), draw(st.integers(1, 64))
    packed = draw(st.sampled_from(["float8_e5m2_x4", "float8_e4m3fn_x4"]))
    scales = draw(st.sampled_from(["float8_e8m0fnu", "uint8"]))
    ops = {
        "dst": tile((lanes, free), packed),
        "dst_scale": tile((lanes - 28, free), scales, first_partition=draw(st.sampled_from([0, 4, 8, 12]))),
        "src": tile((lanes, free, 4), draw(st.sampled_from(["bfloat16", "float16"]))),
    }
    return Case(instr, chip, engine, ops, {"dst_format": packed})


@st.composite
def _shuffled(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    lanes, free, dt = draw(st.integers(1, 128)), draw(st.integers(1, 60)), draw(st.sampled_from(["float32", "uint8"]))
    rows = 32 * -(-lanes // 32)
    memories = [draw(st.sampled_from([Memory.SBUF, Memory.PSUM])) for _ in range(2)]
    starts = [draw(st.sampled_from(allowed_starts(rows))) for _ in range(2)]
    ops = {
        "dst": tile((lanes, free), dt, memories[0], starts[0]),
        "src": tile((rows, free), dt, memories[1], starts[1]),
    }
    return Case(instr, chip, engine, ops, draw(_shuffles(engine, chip)))


@st.composite
def _lists(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    """topk, nonzero_with_count and sequence_bounds: the length of what goes in says that of what comes out."""
    free = draw(st.integers(1, 40))
    if instr.name == "sequence_bounds":
        dts = [draw(st.sampled_from(["float32", "int32"])) for _ in range(2)]
        return Case(instr, chip, engine, {"dst": tile((1, 2, free), dts[0]), "segment_ids": tile((1, free), dts[1])})
    if instr.name == "nonzero_with_count":
        lanes, dt = draw(st.integers(1, 128)), draw(st.sampled_from(["float32", "int32"]))
        attrs = {"index_offset": draw(st.integers(-9, 9)), "padding_val": draw(st.integers(-9, 9))}
        return Case(
            instr, chip, engine, {"dst": tile((lanes, free + 1), "int32"), "src": tile((lanes, free), dt)}, attrs
        )
    lanes, n = 16 * draw(st.integers(1, 8)), draw(st.integers(8, 16 * free + 8))
    k = draw(st.integers(1, n))
    ops = {"val_dst": tile((lanes, k), "bfloat16"), "idx_dst": tile((lanes, k), "uint32")}
    return Case(instr, chip, engine, {**ops, "src": tile((lanes, free + 1), "bfloat16")}, {"n": n})


@st.composite
def _barriers(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    memory = draw(st.sampled_from([Memory.HBM, Memory.SBUF]))
    rows = draw(st.integers(1, 500 if memory is Memory.HBM else 128))
    return Case(instr, chip, engine, {"data": tile((rows, 7), "bfloat16", memory)})


@st.composite
def _collectives(draw: st.DrawFn, instr: Instruction, chip: Chip, engine: Engine) -> Case:
    """Groups of ranks or a permutation of them, and operands of the sizes that follow."""
    n = 4 if instr.name == "all_gather_v" else draw(st.integers(1, 4))
    ranks = draw(st.permutations(range(2 * n)))
    free, rows = draw(st.integers(2, 60)), draw(st.integers(1, 128 // n))
    in_hbm = Memory.HBM in next(iter(instr.operands)).memories and draw(st.booleans())
    memory = Memory.HBM if in_hbm or len(instr.operands[0].memories) == 1 else Memory.SBUF
    dt = draw(st.sampled_from(sorted(instr.operands[0].dtypes & instr.operands[-1].dtypes)))
    whole, part = tile((rows * n, free), dt, memory), tile((rows, free), dt, memory)
    dst, src = {"all_gather": (whole, part), "reduce_scatter": (part, whole)}.get(instr.name, (whole, whole))
    attrs: dict[str, Any] = {"joint": memory is Memory.HBM and (instr.name == "all_gather_v" or draw(st.booleans()))}
    if "pairs" in instr.attrs:
        attrs["pairs"] = tuple(zip(ranks, draw(st.permutations(ranks))))
    else:
        attrs["groups"] = (tuple(ranks[:n]), tuple(ranks[n:]))
    ops = {"dst": dst, **{s.name: src for s in instr.operands if s.name.startswith("src")}}
    if any(s.name == "metadata" for s in instr.operands):
        ops["metadata"] = tile((1, 3, n), "uint32")
    return Case(instr, chip, engine, {s.name: ops[s.name] for s in instr.operands}, attrs)


WHOLE_CASES: dict[str, Any] = {
    **{name: _collectives for name, instr in isa.REGISTRY.items() if isinstance(instr, CollectiveInstruction)},
    "dma_copy": _transfers,
    "dma_transpose": _transposes,
    "dma_compute": _sums,
    "local_gather": _gathers,
    "nc_matmul": _double_rows,
    "nc_matmul_mx": _microscaled,
    "quantize_mx": _quantized,
    "nc_stream_shuffle": _shuffled,
    "topk": _lists,
    "nonzero_with_count": _lists,
    "sequence_bounds": _lists,
    "core_barrier": _barriers,
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
