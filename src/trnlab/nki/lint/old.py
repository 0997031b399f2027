# SPDX-License-Identifier: Apache-2.0
"""Rules of the old dialect's compiler that show in the text of a kernel.

Source of all: "NKI API Errors", general/nki/api/nki.errors.rst of aws-neuron/aws-neuron-sdk up to release 2.26, and
nki_known_issues.rst beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trnlab.nki.lint.finding import ERROR, WARNING, LintFinding
from trnlab.nki.lint.source import OLD, KernelSource, SourceFile

_MANUAL = "NKI API Errors (nki.errors.rst)"
_INDEX_MAKERS = (f"{OLD}.language.arange", f"{OLD}.language.mgrid")


def check(source: SourceFile, function: ast.FunctionDef, kernel: KernelSource) -> Iterator[LintFinding]:
    """Findings about one function of the old dialect."""
    indices = _indices(source, function)
    yield from _flat_aranges(source, function)
    for node in ast.walk(function):
        if isinstance(node, ast.keyword) and node.arg == "mask" and isinstance(node.value, (ast.BoolOp, ast.UnaryOp)):
            if isinstance(node.value, ast.BoolOp) or isinstance(node.value.op, ast.Not):
                yield source.find(
                    node.value,
                    function,
                    "TRN921",
                    WARNING,
                    "and, or, not do not combine masks",
                    "combine masks with &",
                    "nki_known_issues.rst; err_ambiguous_tensor_truth_value",
                )
        elif isinstance(node, (ast.If, ast.While)) and _names(node.test) & indices:
            yield source.find(
                node,
                function,
                "TRN922",
                ERROR,
                "a condition on nl.arange or nl.mgrid",
                "pass the condition as mask= to the operation",
                f"{_MANUAL}, err_control_flow_condition_depending_on_arange",
            )
    yield from _scopes(source, function)
    if function is kernel.node and kernel.made_by == f"{OLD}.jit" and not _is_called(source, function):
        yield from _parameters(source, function)
        yield from _shared(source, function)


def _indices(source: SourceFile, function: ast.FunctionDef) -> set[str]:
    """Names that hold index expressions."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            parts = list(ast.walk(node.value))
            makers = [n for n in parts if source.resolve(n) in _INDEX_MAKERS]
            others = [n for n in parts if isinstance(n, ast.Call) and source.resolve(n.func) not in _INDEX_MAKERS]
            if makers and not others:
                found |= {t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    return found


def _is_called(source: SourceFile, function: ast.FunctionDef) -> bool:
    """Whether a function of the file calls it: then it may be a part of a larger kernel."""
    callers = [f for f in source.functions.values() if f is not function]
    return any(isinstance(n, ast.Name) and n.id == function.name for f in callers for n in ast.walk(f))


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _flat_aranges(source: SourceFile, function: ast.FunctionDef) -> Iterator[LintFinding]:
    """t[i] with i = nl.arange(n), which has one dimension where tiles have two."""
    flat: set[str] = set()
    for node in ast.walk(function):
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(value, ast.Call) and source.resolve(value.func) == _INDEX_MAKERS[0]:
            flat |= {name for target in node.targets for name in _stored(target)}  # type: ignore[attr-defined]
    for node in ast.walk(function):
        if not isinstance(node, ast.Subscript):
            continue
        keys = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        bare: list[ast.expr] = [k for k in keys if isinstance(k, ast.Name) and k.id in flat]
        bare += [k for k in keys if isinstance(k, ast.Call) and source.resolve(k.func) == _INDEX_MAKERS[0]]
        if bare and len(keys) > 1:
            yield source.find(
                node,
                function,
                "TRN920",
                ERROR,
                "a tile is indexed with an nl.arange of one dimension",
                "give it two: nl.arange(n)[:, None] for the partition, nl.arange(n)[None, :] for the free dimension",
                f"{_MANUAL}, err_1d_arange_not_supported",
            )


def _parameters(source: SourceFile, function: ast.FunctionDef) -> Iterator[LintFinding]:
    """nl.store to a parameter that is not declared mutable."""
    fixed = {a.arg for a in function.args.args if not _is_mutable(source, a.annotation)}
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or source.resolve(node.func) != f"{OLD}.language.store":
            continue
        target = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "dst"), None)
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name) and target.id in fixed:
            yield source.find(
                node,
                function,
                "TRN924",
                WARNING,
                f"the kernel stores to its parameter {target.id!r}",
                "make an output with nl.ndarray(..., buffer=nl.shared_hbm) and return it, or annotate the parameter "
                "as nt.mutable_tensor and return it",
                f"{_MANUAL}, err_cannot_update_immutable_parameter",
            )


def _is_mutable(source: SourceFile, annotation: ast.expr | None) -> bool:
    return annotation is not None and "mutable" in ast.dump(annotation)


def _shared(source: SourceFile, function: ast.FunctionDef) -> Iterator[LintFinding]:
    """Outputs are made at the kernel's top level."""
    for block in ast.walk(function):
        divides = isinstance(block, ast.If) and any("program_id" in source.resolve(n) for n in ast.walk(block.test))
        if not divides and not isinstance(block, (ast.For, ast.While)):
            continue
        for node in ast.walk(block):
            buffer = next((k.value for k in getattr(node, "keywords", []) if k.arg == "buffer"), None)
            if isinstance(node, ast.Call) and buffer is not None and source.resolve(buffer).endswith(".shared_hbm"):
                yield source.find(
                    node,
                    function,
                    "TRN925",
                    ERROR,
                    "a shared_hbm tensor made within a loop or a condition",
                    "make it at the top of the kernel",
                    f"{_MANUAL}, err_shared_hbm_must_in_kernel_level",
                )
                return


def _scopes(source: SourceFile, function: ast.FunctionDef) -> Iterator[LintFinding]:
    """A tile made within a loop, or under a condition on a loop's variable, and used after it."""
    variables = {
        n.id
        for loop in ast.walk(function)
        if isinstance(loop, ast.For)
        for n in ast.walk(loop.target)
        if isinstance(n, ast.Name)
    }
    made: dict[str, list[ast.stmt | None]] = {a.arg: [None] for a in function.args.args}
    _assignments(source, function.body, None, variables, made)
    for name, blocks in made.items():
        scopes = [b for b in blocks if b is not None]
        if len(scopes) < len(blocks):
            continue
        for node in ast.walk(function):
            if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
                continue
            if all(node.lineno > (scope.end_lineno or 0) for scope in scopes):
                yield source.find(
                    node,
                    function,
                    "TRN923",
                    WARNING,
                    f"tile {name!r} is made within a loop or condition and used after it",
                    f"make it before with nl.ndarray, and write {name}[...] = ... inside",
                    f"{_MANUAL}, err_local_variable_used_out_of_scope",
                )
                break


def _assignments(
    source: SourceFile,
    body: list[ast.stmt],
    scope: ast.stmt | None,
    variables: set[str],
    made: dict[str, list[ast.stmt | None]],
) -> None:
    """For each name, the scope of each assignment: a loop or condition, None for the function and for no tile."""
    for statement in body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            value = statement.value
            is_tile = isinstance(value, ast.Call) and source.resolve(value.func).startswith(f"{OLD}.")
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                for name in _stored(target):
                    made.setdefault(name, []).append(scope if is_tile else None)
        elif isinstance(statement, (ast.For, ast.If, ast.While, ast.With)):
            if isinstance(statement, ast.For):
                for name in _stored(statement.target):
                    made.setdefault(name, []).append(None)
            opens = isinstance(statement, (ast.For, ast.While))
            opens = opens or (isinstance(statement, ast.If) and bool(_names(statement.test) & variables))
            inner = statement if opens else scope
            for part in (statement.body, getattr(statement, "orelse", [])):
                _assignments(source, part, inner, variables, made)


def _stored(target: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
