# SPDX-License-Identifier: Apache-2.0
"""What the vendor's compiler refuses although it runs here: operators by the formats and forms of their operands.

Source: compiler/error-codes/ of aws-neuron/aws-neuron-sdk (at 81ce03ae), whose codes are the NCC_ names below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from trnlab.frontends.torch.findings.locations import location_of
from trnlab.frontends.torch.findings.survey import Survey
from trnlab.porting.result import NOTE

_WIDE_INTEGERS = (torch.int32, torch.int64)


def _format(node: fx.Node, place: int = 0) -> Any:
    """Format of an operand that is a tensor; None for others."""
    argument = node.args[place] if len(node.args) > place else None
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    return value.dtype if isinstance(value, Tensor) else None


def _on_integers(node: fx.Node) -> bool:
    return _format(node) in (torch.int8, torch.uint8, torch.int16, *_WIDE_INTEGERS)


def _adds_integers(node: fx.Node) -> bool:
    accumulates = "index_put" not in str(node.target) or (len(node.args) > 3 and bool(node.args[3]))
    return accumulates and _format(node) in (*_WIDE_INTEGERS, torch.bool)


def _dilated_twice(node: fx.Node) -> bool:
    """The gradient of a strided convolution with a dilated kernel dilates its input by the stride."""
    stride, dilation = (
        (node.args[i] for i in (4, 6)) if "backward" in str(node.target) else (node.args[3], node.args[5])
    )
    transposed = node.args[7 if "backward" in str(node.target) else 6]
    spread: Any = stride if transposed or "backward" in str(node.target) else (1,)
    return max(spread, default=1) > 1 and max(dilation, default=1) > 1  # type: ignore[arg-type, type-var]


def _narrow_shift(node: fx.Node) -> bool:
    return _format(node) not in (torch.int32, None)


_Rule = tuple[tuple[str, ...], Callable[[fx.Node], bool], str, str, str]
_RULES: tuple[_Rule, ...] = (
    (
        ("aten.topk", "aten.sort"),
        _on_integers,
        "NCC_EVRF013",
        "top-k and sorting of integers",
        "cast to float32 first, where the numbers are below 2^24",
    ),
    (
        ("aten.scatter_add", "aten.scatter_reduce", "aten.index_add", "aten.index_put", "aten.index_reduce"),
        _adds_integers,
        "NCC_EVRF016 and NCC_EVRF060",
        "adding up integers by index",
        "cast to float32 first, where the sums are below 2^24",
    ),
    (
        ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm"),
        lambda n: _format(n) in _WIDE_INTEGERS,
        "NCC_EVRF035",
        "a matrix product of integers",
        "cast to a floating point format first",
    ),
    (
        ("aten.convolution",),
        _dilated_twice,
        "NCC_EVRF010",
        "a convolution with input and kernel dilated at once, as "
        "is the gradient of a strided one with a dilated kernel",
        "give up either the stride or the dilation",
    ),
    (
        ("aten.bitwise_right_shift", "aten.__rshift__"),
        _narrow_shift,
        "NCC_EVRF022",
        "shifting integers to the right that have not 32 bits",
        "cast to int32 first",
    ),
)


def note_limits(module: fx.GraphModule, survey: Survey) -> None:
    """Note the operators of a graph that the vendor's compiler is documented to refuse."""
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        name = str(node.target)
        for names, applies, code, what, do in _RULES:
            if name.startswith(names) and applies(node):
                survey.note(
                    "TRN257",
                    f"the vendor's compiler refuses {what} ({name.removesuffix('.default')})",
                    location_of(node),
                    why=f"{code} of its error codes; it runs here",
                    do=do,
                    severity=NOTE,
                    subject=f"{code} {name}",
                )
