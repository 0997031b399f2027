# SPDX-License-Identifier: Apache-2.0
"""Python's whole numbers beside tensors of narrow integers: as PyTorch takes them, modulo the format.

`x - 3` of a tensor in uint8 may be traced as a sum with -3, and PyTorch computes it with 253. Operators that compute
take any number so; those that fill take what c10 converts without overflow, which are the negatives of an unsigned
format, too. The rest PyTorch refuses, and so does the builder of graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

# Operators whose numbers PyTorch converts with a check, and those whose numbers are no elements.
_CHECKED = frozenset(
    (
        "clamp",
        "clamp_min",
        "clamp_max",
        "where",
        "masked_fill",
        "full",
        "full_like",
        "new_full",
        "scalar_tensor",
        "fill",
        "scatter",
        "index_fill",
        "threshold",
        "addcmul",
        "addcdiv",
        "index_add",
    )
)
_NONE = frozenset(("constant_pad_nd", "arange"))


def in_format(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an operator with its numbers in the format in which it computes."""
    listed, named = list(args), dict(kwargs)
    schema, format_ = getattr(node.target, "_schema", None), _format(node)
    if schema is None or format_ is None:
        return listed, named
    name = schema.name.partition("::")[2]
    for i, argument in enumerate(schema.arguments):
        held: Any = listed if i < len(listed) else named
        key: Any = i if i < len(listed) else argument.name
        if name in _NONE or (name == "pow" and i == 1) or not _is_element(argument):
            continue
        number = held[key] if i < len(listed) or key in named else None
        if type(number) is int:
            held[key] = _wrapped(number, format_, checked=name in _CHECKED or argument.name in ("alpha", "beta"))
    return listed, named


def _is_element(argument: Any) -> bool:
    """Whether an argument may be a number that is computed with: a Scalar, or a tensor that a number stands for."""
    return str(argument.type) in ("number", "Optional[number]", "Tensor", "Optional[Tensor]")


def _format(node: fx.Node) -> torch.iinfo | None:
    """The limits of the narrow integers in which an operator computes: its result's, or of truth its operand's."""
    found = node.meta.get("val")
    if isinstance(found, torch.Tensor) and found.dtype is torch.bool:
        operands = [n.meta.get("val") for n in node.all_input_nodes]
        found = next((v for v in operands if isinstance(v, torch.Tensor) and v.dtype is not torch.bool), None)
    if not isinstance(found, torch.Tensor) or found.dtype not in (torch.uint8, torch.int8, torch.int16):
        return None
    return torch.iinfo(found.dtype)


def _wrapped(number: int, limits: torch.iinfo, *, checked: bool) -> int:
    if limits.min <= number <= limits.max or (checked and (number > 0 or limits.min < 0 or number < -limits.max)):
        return number
    return (number - limits.min) % (1 << limits.bits) + limits.min
