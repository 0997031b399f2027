# SPDX-License-Identifier: Apache-2.0
"""A kernel's source with other values of its parameters: defaults of its arguments, and constants of its module.

A file may declare what is to be tried: `TUNE = {"tile": [128, 256, 512], "buffers": [1, 2, 3]}`.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trnlab.errors import UsageError

DECLARED, NO_PARAMETER = "TUNE", "TRN846"
Values = Mapping[str, Any]


@dataclass(frozen=True)
class SearchSpace:
    """Parameters by name, each with the values that it may have."""

    values: Mapping[str, tuple[Any, ...]]

    def __len__(self) -> int:
        return math.prod(len(of) for of in self.values.values())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for chosen in itertools.product(*self.values.values()):
            yield dict(zip(self.values, chosen))


def space(source: str, said: Sequence[str]) -> SearchSpace:
    """What is to be tried: `NAME=V1,V2,...` of the command line, else what the file declares.

    Raises UsageError (TRN846) for neither, and for what cannot be read.
    """
    values = dict(_parameter(text) for text in said) or _declared(source)
    if not values:
        raise UsageError(
            "nobody says what is to be tried",
            code=NO_PARAMETER,
            remedy=f"give --param tile=128,256,512, or write {DECLARED} = {{'tile': [128, 256, 512]}} in the file",
        )
    return SearchSpace({name: tuple(dict.fromkeys(of)) for name, of in values.items()})


def _parameter(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not equals or not name.isidentifier() or not values:
        raise UsageError(
            "a parameter cannot be read", code=NO_PARAMETER, got=text, limit="NAME=V1,V2,...", remedy="tile=128,256"
        )
    return name, [_literal(value) for value in values.split(",")]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a name, such as that of an engine: as it stands in the source


def _declared(source: str) -> dict[str, list[Any]]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == [DECLARED]:
            try:
                found = ast.literal_eval(node.value)
                return {str(name): list(of) for name, of in found.items()}
            except (ValueError, AttributeError, TypeError) as error:
                raise UsageError(
                    f"{DECLARED} cannot be read",
                    code=NO_PARAMETER,
                    got=str(error),
                    limit="a dict of lists of constants",
                ) from error
    return {}


def edited(source: str, function: str, values: Values) -> str:
    """The source with these values in the place of the defaults of the function's arguments, or of the module's
    constants, of those names. Raises UsageError (TRN846) for a name that is neither."""
    places = _places(ast.parse(source), function)
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    missing = [name for name in values if name not in places]
    if missing:
        raise UsageError(
            "the kernel has no such parameter",
            code=NO_PARAMETER,
            got=", ".join(missing),
            limit=", ".join(places) or "none",
            remedy="a parameter is an argument with a default, or a constant of the file: TILE = 128",
        )
    for node in sorted((places[name] for name in values), key=lambda n: (n.lineno, n.col_offset), reverse=True):
        name = next(n for n, place in places.items() if place is node)
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        tail = lines[last][node.end_col_offset or 0 :]
        text = values[name] if isinstance(values[name], str) and not _quoted(node) else repr(values[name])
        lines[first : last + 1] = [lines[first][: node.col_offset] + text.encode() + tail]
    return b"".join(lines).decode()


def _quoted(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _places(tree: ast.Module, function: str) -> dict[str, ast.expr]:
    """Where the value of each parameter stands."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.FunctionDef) and (not function or node.name == function):
            arguments = node.args
            plain = [*arguments.posonlyargs, *arguments.args]
            pairs = list(zip(reversed(plain), reversed(arguments.defaults)))
            pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults) if d is not None]
            if function or _is_kernel(node):
                found |= {argument.arg: default for argument, default in pairs}
    found.pop(DECLARED, None)
    return found


def _is_kernel(node: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
