# SPDX-License-Identifier: Apache-2.0
"""What a recording knows of an operator: what it writes to, what it returns, and which floats may be inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from trnlab.frontends.torch.decompositions import factors, fused_optimizers
from trnlab.frontends.torch.recording.indices import on_device

_ON_THE_HOST = (torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_LISTS_OF_FACTORS = frozenset({"add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp"})
FOREACH = "aten::_foreach_"  # operators over lists
MODERATE = 2.0**40  # up to here, and down to one over this, what is divided by may be an input of a program


@dataclass(frozen=True, eq=False)
class OperatorSchema:
    """An operator."""

    op: Any
    number: int
    name: str
    names: tuple[str, ...]  # of its arguments
    # written, outs: those that it writes to, and of these the ones that the caller gives for results
    written: frozenset[str]
    outs: frozenset[str]
    factors: frozenset[str]  # those whose floats may be inputs of a program
    returned: tuple[str | None, ...]  # for each result the argument that it is, None for a new one
    lists: tuple[bool, ...]
    recordable: bool  # whether it can be computed later
    fused: bool
    draws: bool
    in_place: bool  # whether it may write to the very memory that it reads
    # whether it may to that of its first tensor, as PyTorch's own form in place does, which calls it so
    over_self: bool


_INDEXING = frozenset(
    {
        torch.ops.aten.index.Tensor,
        torch.ops.aten.index.Tensor_out,
        torch.ops.aten._unsafe_index.Tensor,
        torch.ops.aten.index_put.default,
        torch.ops.aten.index_put_.default,
        torch.ops.aten._index_put_impl_.default,
    }
)
_ELEMENTWISE = ("aten::copy_", "aten::where")  # which PyTorch does not tag so: their result may lie where they read
_count = iter(range(1 << 62))


@cache
def operator(op: Any) -> OperatorSchema:
    """What is known of `op`."""
    schema = op._schema
    written = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    returned, shows = [], False
    for result in schema.returns:
        about = result.alias_info
        same = [a.name for a in schema.arguments if about is not None and _aliases(a, about)]
        returned.append(same[0] if same else None)
        shows = shows or (about is not None and not about.is_write)
    kinds = [str(r.type) for r in schema.returns]
    plain = all(kind in ("Tensor", "List[Tensor]", "Optional[Tensor]") for kind in kinds)
    return OperatorSchema(
        op,
        next(_count),
        schema.name,
        tuple(a.name for a in schema.arguments),
        written,
        frozenset(a.name for a in schema.arguments if a.is_out),
        _factors(op),
        tuple(returned),
        tuple(kind == "List[Tensor]" for kind in kinds),
        plain and not shows and not any(tag in op.tags for tag in _ON_THE_HOST),
        factors.base_name(op) in fused_optimizers.NAMES,
        torch.Tag.nondeterministic_seeded in op.tags,
        (torch.Tag.pointwise in op.tags and not schema.name.startswith(FOREACH)) or schema.name in _ELEMENTWISE,
        any(a.name == "self" for a in schema.arguments[:1])
        and hasattr(torch.ops.aten, f"{schema.name.removeprefix('aten::')}_"),
    )


def instead(op: Any, args: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """An operator that has a form on the chip, in the place of one that says less or is PyTorch's own way to it:
    batch norm that says that it writes running averages, `index_put_` for `x[i] = y`, `cat` of what has elements,
    indices on the device for those that the host holds."""
    aten = torch.ops.aten
    if op in _INDEXING:
        args = (args[0], on_device(args[0].shape, args[1]), *args[2:])
    if op in (aten.cat.default, aten.cat.out):
        return op, (_with_elements(*args), *args[1:])
    if op is aten._index_put_impl_.default:
        return aten.index_put_.default, args[:4]
    if op is not aten.native_batch_norm.default:
        return op, args
    if args[3] is None:
        return aten._native_batch_norm_legit.no_stats, (*args[:3], *args[5:])
    return aten._native_batch_norm_legit.default, args


def _with_elements(tensors: Sequence[torch.Tensor], dim: int = 0) -> Sequence[torch.Tensor]:
    """Those that add anything to the others along `dim`: not the columns that no rotary embedding leaves over."""
    if all(t.numel() for t in tensors):
        return tensors
    full = [t for t in tensors if t.numel()]

    def adds_nothing(t: torch.Tensor) -> bool:
        beside, at = full[0], dim % full[0].dim()
        others = t.shape[:at] + t.shape[at + 1 :] == beside.shape[:at] + beside.shape[at + 1 :]
        fits = t.shape == (0,) or (t.dim() == beside.dim() and t.shape[at] == 0 and others)
        return fits and t.dtype == beside.dtype

    return full if full and all(t.numel() or adds_nothing(t) for t in tensors) else tensors


def is_factor(about: OperatorSchema, name: str, value: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a Python number may be an input of a program: another value needs no other program then. A whole number
    may where it meets floats, which it does not make others."""
    if name not in about.factors:
        return False
    return type(value) is float or (type(value) is int and bool(tensors) and tensors[0].is_floating_point())


def _aliases(argument: Any, about: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.before_set == about.before_set


def list_operator(op: Any) -> str | None:
    """For an operator over lists, the plain one that meets each element, where its floats may be inputs."""
    name: str = op._schema.name
    base = name.removeprefix(FOREACH).removesuffix("_")
    return base if name.startswith(FOREACH) and base in _LISTS_OF_FACTORS else None


def _factors(op: Any) -> frozenset[str]:
    if list_operator(op) is not None:
        kinds = ("Scalar", "number", "float", "List[Scalar]", "List[number]", "List[float]")
        return frozenset(a.name for a in op._schema.arguments if str(a.type) in kinds)
    if op._schema.name.startswith(FOREACH):
        return frozenset()
    return factors.arguments(op)


def divides(about: OperatorSchema, given: dict[str, Any]) -> bool:
    """Whether floats of this operator that may be inputs are what it divides by, and quotients are not rounded."""
    base = list_operator(about.op) or factors.base_name(about.op)
    return base == "div" and given.get("rounding_mode") is None


def inverse(number: float) -> float | None:
    """One over a number as a division by a constant multiplies with it; None where that is not `MODERATE`."""
    return 1 / number if 1 / MODERATE <= number <= MODERATE else None


def call(about: OperatorSchema, given: dict[str, Any], is_open: bool) -> Any:
    """The operator on arguments by name. is_open: whether floats among them are tensors without dimensions, which are
    the inverse of what a division divides by."""
    if not is_open and not about.fused:
        return plain(about, given)
    if divides(about, given):
        return _multiplied(about, given)
    base = list_operator(about.op)
    return factors.call(about.op, given) if base is None else _each(about, base, given)


def plain(about: OperatorSchema, named: dict[str, Any]) -> Any:
    """The operator itself; where its schema has a tensor it may be given a number."""
    schema = about.op._schema.arguments
    numbers = any(isinstance(named.get(a.name), (int, float, complex)) and str(a.type) == "Tensor" for a in schema)
    if not numbers:
        return about.op(**named)
    positional = [a.name for a in schema if not a.kwarg_only and a.name in named]
    rest = {k: v for k, v in named.items() if k not in positional}
    return about.op.overloadpacket(*(named[name] for name in positional), **rest)


def _multiplied(about: OperatorSchema, given: dict[str, Any]) -> Any:
    if list_operator(about.op) is not None:
        return _each(about, "mul", given)
    result = given["self"] * given["other"]
    if "out" in given:
        return given["out"].copy_(result)
    return given["self"].copy_(result) if about.written else result


def _each(about: OperatorSchema, base: str, given: dict[str, Any]) -> Any:
    """Element by element: what is given as a list has one element for each."""
    form: Callable[..., Any] = {**factors._WRITTEN_OUT, **factors._PLAIN}[base]
    first: Sequence[torch.Tensor] = given[about.names[0]]
    rest = [given[name] for name in about.names[1:] if name in given]
    results = []
    for i, x in enumerate(first):
        operands = [v[i] if isinstance(v, (list, tuple)) else v for v in rest]
        made = form(x, *operands)
        results.append(x.copy_(made) if about.written else made)
    return results if not about.written else None
