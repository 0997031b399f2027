# SPDX-License-Identifier: Apache-2.0
"""Modules of StableHLO as jaxlib's MLIR bindings show them: the only file that knows these bindings.

Text and bytecode (portable artifacts among them) are parsed; types, constants, attributes and places in the source
are read into what the rest of the package works with.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

import trnlab
from trnlab.errors import Location, UnsupportedOpError, UsageError
from trnlab.graph.ir import TensorType
from trnlab.numerics import dtypes
from trnlab.numerics.dtypes import DType

Array = np.ndarray[Any, Any]

# Formats that the chip lacks: numbers that are known when a module is read may have them.
INT64 = DType("int64", -1, 8, "i", np.dtype(np.int64))
UINT64 = DType("uint64", -2, 8, "u", np.dtype(np.uint64))
FLOAT64 = DType("float64", -3, 8, "f", np.dtype(np.float64))
WIDE = {INT64: dtypes.int32, UINT64: dtypes.uint32, FLOAT64: dtypes.float32}

_ELEMENTS: dict[str, DType] = {
    "f32": dtypes.float32,
    "bf16": dtypes.bfloat16,
    "f16": dtypes.float16,
    "f8E4M3": dtypes.float8_e4m3,
    "f8E4M3FN": dtypes.float8_e4m3fn,
    "f8E5M2": dtypes.float8_e5m2,
    "i32": dtypes.int32,
    "ui32": dtypes.uint32,
    "i16": dtypes.int16,
    "ui16": dtypes.uint16,
    "i8": dtypes.int8,
    "ui8": dtypes.uint8,
    "i1": dtypes.bool_,
    "i64": INT64,
    "ui64": UINT64,
    "f64": FLOAT64,
    "tf32": dtypes.tfloat32,
}
_HELD = ", ".join(sorted(name for name, held in _ELEMENTS.items() if held not in (FLOAT64, UINT64)))
_OURS = str(Path(trnlab.__file__).parent)
_PLACE = re.compile(r'"([^"]+)"\("([^"]+)":(\d+):\d+|"([^"]+)":(\d+):\d+')
_NAME = re.compile(r'loc\("([^"]+)"')
_TRANSFORMED = re.compile(r"(\w+)\((.*)\)")
_NO_MODULES = frozenset(
    {
        "while",
        "body",
        "cond",
        "scan",
        "closed_call",
        "checkpoint",
        "rematted_computation",
        "remat",
        "custom_jvp_call",
        "custom_vjp_call",
        "core_call",
        "pjit",
        "branch_0_fun",
        "branch_1_fun",
    }
)
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|<frozen ")


@lru_cache(maxsize=1)
def context() -> Any:
    """One context for all modules that are parsed here, with every dialect that may come up."""
    made, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    made.append_dialect_registry(registry)
    made.load_all_available_dialects()
    stablehlo.register_dialect(made)
    chlo.register_dialect(made)
    mhlo.register_mhlo_dialect(made)
    sdy.register_dialect(made)
    stablehlo.register_stablehlo_passes()
    return made


def parse(source: str | bytes) -> Any:
    """A module from MLIR text, bytecode, or a portable StableHLO artifact.

    Raises UsageError (TRN230) with the parser's own words for what it cannot read.
    """
    with context() as now, ir.Location.unknown(now):
        try:
            if isinstance(source, bytes) and source[:4] == b"ML\xefR":
                try:
                    return stablehlo.deserialize_portable_artifact(now, source)
                except Exception:
                    return ir.Module.parse(source, now)
            return ir.Module.parse(source, now)
        except ir.MLIRError as error:
            raise UsageError(
                "this is no module of StableHLO that can be read",
                code="TRN230",
                got=_first_line(str(error)),
                remedy="write it with jax.jit(f).lower(...).as_text() or jax.export, or another front end of XLA",
            ) from error


def from_hlo(serialized: bytes) -> str:
    """Text of the module of StableHLO for one of HLO, a serialized HloModuleProto.

    Raises ImportError or AttributeError where this jaxlib has no such conversion.
    """
    from jaxlib import _jax, xla_client

    return str(_jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(serialized)))


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "error:" in line] or text.splitlines()
    return lines[0].strip()


def functions(module: Any) -> dict[str, Any]:
    """The functions of a module by name."""
    found = {}
    for op in module.body.operations:
        if op.operation.name == "func.func":
            found[str(op.attributes["sym_name"].value)] = op
    return found


def split_chlo(op: Any) -> Any | None:
    """The function that jaxlib's own legalization makes of one CHLO op in terms of StableHLO; None if it makes none.

    The function takes the op's operands and returns its results.
    """
    operands = [str(v.type) for v in op.operands]
    results = [str(v.type) for v in op.results]
    body = op.operation.get_asm(print_generic_op_form=True, enable_debug_info=False)
    _, _, rest = body.partition(" = ")
    head, _, tail = (rest or body).partition("(")
    attributes = tail[tail.index(")") + 1 :]
    names = ", ".join(f"%a{i}" for i in range(len(operands)))
    arguments = ", ".join(f"%a{i}: {t}" for i, t in enumerate(operands))
    returned = ", ".join(f"%r#{i}" for i in range(len(results)))
    text = (
        f"func.func @main({arguments}) -> ({', '.join(results)}) {{\n"
        f"%r:{len(results)} = {head}({names}){attributes}\nreturn {returned} : {', '.join(results)}\n}}"
    )
    module, function = _legalized(text)
    return None if "chlo." in str(module) else function


@lru_cache(maxsize=256)
def _legalized(text: str) -> tuple[Any, Any]:
    """A module and its one function; the function lives as long as the module does."""
    with context() as now, ir.Location.unknown(now):
        module = ir.Module.parse(text, now)
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
    (function,) = functions(module).values()
    return module, function


# -- types ----------------------------------------------------------------------------------------------------------


def type_of(shown: Any) -> TensorType:
    """Shape and format of an MLIR type. Raises UnsupportedOpError for what no chip's tensor is."""
    if not isinstance(shown, ir.RankedTensorType):
        raise UnsupportedOpError(
            f"a value of type {shown}",
            code="TRN233",
            limit="tensors of known rank",
            remedy="export the function with tensors of fixed shapes",
        )
    tensor = shown
    element = str(tensor.element_type)
    if not tensor.has_static_shape:
        raise UnsupportedOpError(
            f"a tensor whose shape is not known: {shown}",
            code="TRN233",
            limit="static shapes",
            remedy="export the function for the shapes that it will run with",
        )
    if element not in _ELEMENTS:
        remedy = "keep real and imaginary parts apart" if element.startswith("complex") else "convert it to another"
        raise UnsupportedOpError(
            f"the chip has no format for {element}",
            code="TRN232",
            limit=_HELD,
            got=str(shown),
            remedy=f"{remedy}, or compute it on the host",
        )
    return TensorType(tuple(tensor.shape), _ELEMENTS[element])


# -- attributes -----------------------------------------------------------------------------------------------------


def has(op: Any, name: str) -> bool:
    """Whether the op carries the attribute."""
    return name in op.attributes


def ints(op: Any, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """An array of integers, or a dense one."""
    if not has(op, name):
        return default
    attr = op.attributes[name]
    if isinstance(attr, ir.DenseElementsAttr):
        return tuple(int(n) for n in np.array(attr).reshape(-1))
    return tuple(int(n) for n in attr)


def columns(op: Any, name: str) -> int:
    """The length of the rows of a dense table."""
    return int(ir.RankedTensorType(op.attributes[name].type).shape[-1])


def int_(op: Any, name: str, default: int | None = None) -> int:
    """One integer."""
    if default is not None and not has(op, name):
        return default
    return int(ir.IntegerAttr(op.attributes[name]).value)


def bools(op: Any, name: str, default: tuple[bool, ...] = ()) -> tuple[bool, ...]:
    """An array of truth values."""
    if not has(op, name):
        return default
    attr = op.attributes[name]
    if isinstance(attr, ir.DenseElementsAttr):
        return tuple(bool(n) for n in np.array(attr).reshape(-1))
    return tuple(bool(n) for n in attr)


def flag(op: Any, name: str) -> bool:
    """A yes or no; no where the op does not say."""
    return has(op, name) and str(op.attributes[name]) == "true"


def text(op: Any, name: str, default: str = "") -> str:
    """A string, or the name of a function."""
    return str(op.attributes[name].value) if has(op, name) else default


def text_of_composite(op: Any, name: str) -> str:
    """A string among the attributes of its own that a composite carries."""
    return str(ir.DictAttr(op.attributes["composite_attributes"])[name].value)


def word(op: Any, name: str, default: str = "") -> str:
    """The last word of an attribute such as #stablehlo<comparison_direction LT>."""
    return re.split(r"[ .<]", str(op.attributes[name]).rstrip(">"))[-1] if has(op, name) else default


def words(op: Any, name: str) -> list[str]:
    """As `word`, of every attribute in an array."""
    return [re.split(r"[ .<]", str(a).rstrip(">"))[-1] for a in op.attributes[name]] if has(op, name) else []


def dot_numbers(op: Any) -> dict[str, tuple[int, ...]]:
    """The dimension numbers of a dot_general."""
    return _numbers(
        stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"]),
        (
            "lhs_batching_dimensions",
            "rhs_batching_dimensions",
            "lhs_contracting_dimensions",
            "rhs_contracting_dimensions",
        ),
    )


def gather_numbers(op: Any) -> dict[str, Any]:
    """The dimension numbers of a gather, or of a dynamic one."""
    given = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    names = "offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims"
    return {**_numbers(given, (*names, "start_index_map")), "index_vector_dim": int(given.index_vector_dim)}


def scatter_numbers(op: Any) -> dict[str, Any]:
    """The dimension numbers of a scatter, by the names of the graph's op."""
    given = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    names = {
        "update_window_dims": "update_window_dims",
        "inserted_window_dims": "inserted_window_dims",
        "input_batching_dims": "input_batching_dims",
        "scatter_indices_batching_dims": "scatter_indices_batching_dims",
        "scattered_dims_to_operand_dims": "scatter_dims_to_operand_dims",
    }
    found = {ours: tuple(int(n) for n in getattr(given, theirs)) for theirs, ours in names.items()}
    return {**found, "index_vector_dim": int(given.index_vector_dim)}


def convolution_numbers(op: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The dimensions of lhs as (batch, feature, space...), of rhs as (output, input, space...), of the result."""
    n = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    lhs = n.input_batch_dimension, n.input_feature_dimension, *n.input_spatial_dimensions
    rhs = n.kernel_output_feature_dimension, n.kernel_input_feature_dimension, *n.kernel_spatial_dimensions
    out = n.output_batch_dimension, n.output_feature_dimension, *n.output_spatial_dimensions
    return tuple(map(int, lhs)), tuple(map(int, rhs)), tuple(map(int, out))


def _numbers(given: Any, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(int(n) for n in getattr(given, name)) for name in names}


def aliases(function: Any) -> dict[int, int]:
    """For each argument that a result overwrites, by number, the result."""
    given = function.attributes.get("arg_attrs", ())
    found = {}
    for i, attrs in enumerate(given):
        attrs = ir.DictAttr(attrs)
        if "tf.aliasing_output" in attrs:
            found[i] = int(ir.IntegerAttr(attrs["tf.aliasing_output"]).value)
    return found


# -- constants ------------------------------------------------------------------------------------------------------


def constant(op: Any) -> Array:
    """The elements of a constant, in the NumPy dtype of their format; one that is filled has strides of zero."""
    kind = type_of(op.results[0].type)
    attr = op.attributes["value"]
    if not isinstance(attr, ir.DenseElementsAttr):
        raise UnsupportedOpError(
            "a constant whose elements lie outside of the module",
            code="TRN233",
            where=location(op),
            remedy="write the module with its constants in it",
        )
    dense = attr
    try:
        array = np.array(dense)
    except Exception:  # formats that the bindings have no array of
        return _spelled(str(attr), kind)
    array = array.astype(np.uint8 if kind.dtype is dtypes.bool_ else kind.dtype.numpy)
    if dense.is_splat and array.size:
        return np.broadcast_to(array.reshape(-1)[0], kind.shape)
    return array.reshape(kind.shape)


def _spelled(shown: str, kind: TensorType) -> Array:
    """Elements of a dense attribute from its text: numbers, bits of numbers, or the bytes of all."""
    held = kind.dtype.numpy
    whole = re.search(r'dense<"0x([0-9A-Fa-f]*)">', shown)
    if whole is not None:
        array = np.frombuffer(bytes.fromhex(whole[1]), held)
    else:
        inside = shown[shown.index("<") + 1 : shown.rindex("> :")]
        array = np.array([_element(token, held) for token in re.findall(r"[^\s\[\],]+", inside)], held)
    if array.size == 1:
        return np.broadcast_to(array[0], kind.shape)
    return array.reshape(kind.shape)


def _element(token: str, held: np.dtype[Any]) -> Any:
    if token.startswith("0x"):
        return np.array(int(token, 16), f"u{held.itemsize}").view(held)[()]
    return np.array(float(token)).astype(held)[()]


# -- places ---------------------------------------------------------------------------------------------------------


def location(op: Any) -> Location | None:
    """The innermost line outside of libraries that an op comes from, else the innermost; None where none is told."""
    found = list(_places(str(op.location)))
    users = (p for p in found if not _LIBRARY.search(p[1]) and not p[1].startswith(_OURS))
    chosen = next(users, found[0] if found else None)
    if chosen is None:
        return None
    function, file, line = chosen
    layer, phase = scope(op)
    text = linecache.getline(file, line).strip()
    return Location(file, line, "" if function == "<module>" else function, text, layer, phase)


def scope(op: Any) -> tuple[str, str]:
    """The module whose code an op is, and whether it is of the forward or the backward pass, as far as the name that
    JAX gives it says so: jit(step)/transpose(jvp(Model))/Dense_0/dot_general."""
    match = _NAME.match(str(op.location))
    if match is None:
        return "", ""
    whole = match[1]
    phase = "backward" if "transpose(" in whole and not is_again(op) else "forward" if "jvp(" in whole else ""
    parts = [_unwrapped(part) for part in whole.split("/")[:-1]]
    return ".".join(part for part in parts if part and part not in _NO_MODULES and "->" not in part), phase


def is_loop(op: Any) -> bool:
    """Whether an op goes round and round."""
    return bool(op.operation.name == "stablehlo.while")


def is_again(op: Any) -> bool:
    """Whether an op computes again, for the backward pass, what a checkpoint did not keep."""
    match = _NAME.match(str(op.location))
    return match is not None and "rematted_computation" in match[1]


def is_within(op: Any) -> bool:
    """Whether the name of an op begins at the function that calls it."""
    match = _NAME.match(str(op.location))
    return match is not None and not match[1].startswith("jit(")


def _unwrapped(part: str) -> str:
    """What JAX's transformations are of: Model in transpose(jvp(Model)); nothing of jit(step)."""
    while (match := _TRANSFORMED.fullmatch(part)) is not None:
        part = "" if match[1] in ("jit", "pjit") else match[2]
    return part


def _places(shown: str) -> Iterator[tuple[str, str, int]]:
    for match in _PLACE.finditer(shown):
        function, file, line, bare, bare_line = match.groups()
        yield (function, file, int(line)) if file else ("", bare, int(bare_line))


def origin(op: Any) -> str:
    """The framework's own name of an op: the last part of the name that its location carries, else the op's;
    of a composite its own name."""
    if op.operation.name == "stablehlo.composite":
        return text(op, "name").rsplit(".", 1)[-1]
    match = re.match(r'loc\("([^"]+)"', str(op.location))
    name = match[1].rsplit("/", 1)[-1] if match and not match[1].endswith(".py") else ""
    return name or op.operation.name
