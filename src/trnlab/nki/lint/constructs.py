# SPDX-License-Identifier: Apache-2.0
"""Python that the compiler of the new dialect does not take.

Two kinds of rule. Errors are what the migration guide and the language guide say is refused. Warnings are constructs
that the language guide does not list among those it has and that none of the kernels published by the vendor uses;
whether a compiler of today takes them is not documented.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trnlab.nki.lint.finding import ERROR, WARNING, LintFinding
from trnlab.nki.lint.source import KernelSource, SourceFile

GUIDE = "NKI language guide (nki/get-started/nki-language-guide.rst)"
MIGRATION = "NKI migration guide (nki/migration/index.rst)"
_SUBSET = f"{GUIDE}: only a subset of Python"

_UNLISTED: tuple[tuple[tuple[type[ast.AST], ...], str, str], ...] = (
    ((ast.Try,), "try/except", "test the condition with if before, or assert it"),
    ((ast.Yield, ast.YieldFrom), "a generator", "return a list, or write the loop where it is used"),
    ((ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef), "async code", "write it as plain code"),
    ((ast.Lambda,), "a lambda", "define a function with def"),
    ((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "a comprehension", "write a for loop that appends"),
    ((ast.Set,), "a set", "use a list or a tuple"),
    ((ast.Global, ast.Nonlocal), "global or nonlocal", "pass the value as an argument; kernels are pure functions"),
    ((ast.NamedExpr,), "an assignment within an expression (:=)", "assign on a line of its own"),
    ((ast.Delete,), "del", "leave the name; memory is freed after the last use"),
    ((ast.Match,), "match", "use if and elif"),
    ((ast.Import, ast.ImportFrom), "an import within the kernel", "import at the head of the file"),
)


def check(source: SourceFile, function: ast.FunctionDef, kernel: KernelSource) -> Iterator[LintFinding]:
    """Findings about the constructs of one function."""
    if function is kernel.node:
        yield from _signature(source, function)
    for node in ast.walk(function):
        yield from _refused(source, function, node)
        for kinds, name, remedy in _UNLISTED:
            if isinstance(node, kinds):
                what = f"{name} in a kernel: the language guide lists no such construct"
                yield source.find(node, function, "TRN902", WARNING, what, remedy, _SUBSET)
        if isinstance(node, ast.With) and not any(_is_known_block(source, item) for item in node.items):
            yield source.find(
                node,
                function,
                "TRN902",
                WARNING,
                "a with block other than nl.no_reorder() in a kernel",
                "write the statements without the block",
                _SUBSET,
            )


def _signature(source: SourceFile, function: ast.FunctionDef) -> Iterator[LintFinding]:
    arguments = function.args
    if arguments.kwonlyargs:
        yield source.find(
            arguments.kwonlyargs[0],
            function,
            "TRN901",
            ERROR,
            "a kernel's signature has the separator *",
            "leave out the *, and put arguments with defaults last",
            f"{MIGRATION}, 0.3.0",
        )
    for default in [*arguments.defaults, *(d for d in arguments.kw_defaults if d)]:
        if isinstance(default, (ast.List, ast.Dict, ast.Set)):
            kind = type(default).__name__.lower()
            yield source.find(
                default,
                function,
                "TRN901",
                ERROR,
                f"a {kind} as the argument of a kernel",
                "use a tuple, which can be compared and hashed",
                f"{MIGRATION}, 0.3.0",
            )


def _refused(source: SourceFile, function: ast.FunctionDef, node: ast.AST) -> Iterator[LintFinding]:
    if isinstance(node, ast.Compare):
        for operator, right in zip(node.ops, node.comparators):
            none = isinstance(right, ast.Constant) and right.value is None
            if isinstance(operator, (ast.Is, ast.IsNot)) and not none:
                sign = "==" if isinstance(operator, ast.Is) else "!="
                severity = ERROR if isinstance(right, ast.Constant) else WARNING  # nki-library compares tensors so
                yield source.find(
                    node,
                    function,
                    "TRN901",
                    severity,
                    "is and is not compare identities, which kernels do not have",
                    f"compare with {sign}",
                    f"{MIGRATION}, 0.3.0",
                )
    elif isinstance(node, ast.Dict):
        wrong = [key for key in node.keys if isinstance(key, ast.Constant) and not isinstance(key.value, str)]
        for key in wrong[:1]:
            yield source.find(
                key, function, "TRN901", ERROR, "a dict with a key that is no string", "make the key a string", GUIDE
            )
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        made = source.classes.get(node.func.id)
        if made is not None and not _is_kernel_class(source, made):
            yield source.find(
                node,
                function,
                "TRN901",
                ERROR,
                f"class {made.name!r} does not inherit from nl.NKIObject",
                f"write class {made.name}(nl.NKIObject), and no other base",
                GUIDE,
            )


def _is_kernel_class(source: SourceFile, node: ast.ClassDef) -> bool:
    """Whether it inherits from NKIObject or is an enumeration, perhaps through classes of the same file."""
    for base in node.bases:
        name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
        if name in ("NKIObject", "Enum", "IntEnum", "NamedTuple") or source.resolve(base).startswith(
            ("nki", "neuron")
        ):
            return True
        if name in source.classes and source.classes[name] is not node:
            return _is_kernel_class(source, source.classes[name])
        if name and name not in source.classes and name != "object":
            return True  # from another file: not seen
    return False


def _is_known_block(source: SourceFile, item: ast.withitem) -> bool:
    call = item.context_expr
    name = source.resolve(call.func if isinstance(call, ast.Call) else call)
    return name.startswith(("nki", "neuronxcc", "trnlab")) or not name
