# SPDX-License-Identifier: Apache-2.0
"""Names and calls: what the chip or the language does not have, and arguments that a function does not take."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from trnlab import isa
from trnlab.chips import catalog
from trnlab.chips.spec import Chip
from trnlab.isa.alu import ALU
from trnlab.nki.lint import names
from trnlab.nki.lint.constructs import GUIDE, MIGRATION
from trnlab.nki.lint.finding import ERROR, WARNING, LintFinding
from trnlab.nki.lint.source import NEW, OLD, KernelSource, SourceFile

_HOST = ("numpy", "torch", "jax", "scipy", "tensorflow")
_ENUMS = {name: name for name in ("dge_mode", "oob_mode", "reduce_cmd", "engine", "dma_engine")}
_ENUMS["perf_mode"] = "matmul_perf_mode"
_GENERATIONS = ("trn1", "trn2", "trn3")
DEPRECATED, IS_DEPRECATED = "TRN903", " is deprecated"


def check(
    source: SourceFile, function: ast.FunctionDef, kernel: KernelSource, chip: Chip, chosen: bool
) -> Iterator[LintFinding]:
    """Findings about the names and calls of one function. chosen: somebody named the chip."""
    if function is kernel.node:
        yield from _decorator(source, function)
    constants: set[ast.AST] = {  # what nl.shared_constant takes is made on the host
        inner
        for n in ast.walk(function)
        if isinstance(n, ast.Call)
        if source.resolve(n.func).endswith(".language.shared_constant")
        for inner in ast.walk(n)
    }
    for node in ast.walk(function):
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
            yield from _name(source, function, kernel, node)
            yield from _generation(source, function, node, chip, chosen)
        elif isinstance(node, ast.Call):
            yield from _call(source, function, kernel, node, constants)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Return)):
            yield from _result(source, function, node)
    yield from _loops(source, function)


def _decorator(source: SourceFile, function: ast.FunctionDef) -> Iterator[LintFinding]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and source.resolve(decorator.func) == f"{NEW}.jit":
            for keyword in decorator.keywords:
                if keyword.arg in names.JIT_OPTIONS:
                    remedy, who = names.JIT_OPTIONS[keyword.arg]
                    what = f"nki.jit no longer takes {keyword.arg}="
                    yield source.find(decorator, function, "TRN913", WARNING, what, remedy, who)


# -- names ------------------------------------------------------------------------------------------------------
def _name(
    source: SourceFile, function: ast.FunctionDef, kernel: KernelSource, node: ast.Attribute | ast.Name
) -> Iterator[LintFinding]:
    name = source.resolve(node)
    if not name or _inside_decorator(function, node):
        return
    if name in names.REMOVED:
        remedy, who = names.REMOVED[name]
        severity = WARNING if names.known(name) else ERROR  # some that went away are still taken here
        yield source.find(node, function, "TRN910", severity, f"{name} is gone", remedy, who)
    elif name in names.UNDOCUMENTED:
        remedy, who = names.UNDOCUMENTED[name]
        yield source.find(node, function, "TRN910", WARNING, f"no release documents {name}", remedy, who)
    elif name in names.DEPRECATED:
        remedy, who = names.DEPRECATED[name]
        yield source.find(node, function, DEPRECATED, WARNING, f"{name}{IS_DEPRECATED}", remedy, who)
    elif kernel.dialect == NEW and name.startswith(f"{OLD}.") and not name.startswith(f"{OLD}.typing"):
        yield source.find(
            node,
            function,
            "TRN914",
            ERROR,
            f"{name} in a kernel of the new dialect",
            f"import it from {NEW}{name[len(OLD) :].rpartition('.')[0]}",
            f"{MIGRATION}, 0.4.0",
        )
    elif not names.known(name):
        near = names.nearest(name)
        head, rest = names.split(name)
        if rest.startswith("_"):
            return  # the vendor's own, which nobody describes
        severity = ERROR if kernel.dialect == NEW else WARNING  # the old dialect was never described in full
        remedy = f"did you mean {near}?" if near else f"see dir({head})"
        what = f"{head} has no {rest.split('.')[0]!r}"
        yield source.find(node, function, "TRN910", severity, what, remedy, f"the names of {head}")


def _inside_decorator(function: ast.FunctionDef, node: ast.AST) -> bool:
    return any(node is inner for decorator in function.decorator_list for inner in ast.walk(decorator))


def _generation(
    source: SourceFile, function: ast.FunctionDef, node: ast.Attribute | ast.Name, chip: Chip, chosen: bool
) -> Iterator[LintFinding]:
    """What the chip does not have: an error where somebody chose the chip, else perhaps meant for another one."""
    name = source.resolve(node)
    head, _, last = name.rpartition(".")
    feature = ""
    if head.endswith(".isa") and last in isa.REGISTRY:
        feature = isa.REGISTRY[last].feature
    elif head.endswith(".language") and last.endswith("_x4") and not _is_compared(function, node):
        feature = "mx_formats"
    elif head.endswith(".language") and last in ("abs_max", "abs_min"):
        feature = ALU[last].feature or ""
    if feature and not chip.has(feature) and not _inside_decorator(function, node):
        having = [c for c in _GENERATIONS if catalog.get(c).has(feature)]
        yield source.find(
            node,
            function,
            "TRN915",
            ERROR if chosen else WARNING,
            f"{chip.name} does not have {last}",
            f"choose {' or '.join(having)}, or compose it from other instructions",
            f"the chip's feature {feature!r}",
        )


def _is_compared(function: ast.FunctionDef, node: ast.AST) -> bool:
    """Whether a format is only named to compare with, as in `assert dtype != nl.float4_e2m1fn_x4`."""
    return any(node is part for n in ast.walk(function) if isinstance(n, ast.Compare) for part in ast.walk(n))


# -- calls ------------------------------------------------------------------------------------------------------
def _call(
    source: SourceFile, function: ast.FunctionDef, kernel: KernelSource, node: ast.Call, constants: set[ast.AST]
) -> Iterator[LintFinding]:
    name = source.resolve(node.func)
    root = name.split(".")[0]
    runs_here = root in _HOST and "." in name and not _is_format(name) and not _inside_decorator(function, node)
    if runs_here and kernel.dialect == NEW and node not in constants:
        yield source.find(
            node,
            function,
            "TRN916",
            WARNING,
            f"{name} in a kernel: it would run on the host, while compiling",
            "compute it outside and pass it in, or use nl and nisa",
            f"{GUIDE}: not all libraries are supported",
        )
    if not name.startswith((f"{NEW}.", f"{OLD}.")) or name in names.REMOVED or not names.known(name):
        return
    yield from _arguments(source, function, node, name)
    yield from _objects(source, function, node, name)


def _is_format(name: str) -> bool:
    return name.rpartition(".")[2] in ("dtype", "finfo", "iinfo", "float32", "float16", "int32", "uint32", "int8")


def _arguments(source: SourceFile, function: ast.FunctionDef, node: ast.Call, name: str) -> Iterator[LintFinding]:
    """Keywords that the function does not take, and arguments that are missing."""
    signature = names.signature(name)
    if signature is None:
        return
    parameters = signature.parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = [k for k in node.keywords if k.arg and k.arg not in parameters and not takes_any]
    short = name.rpartition(".")[2]
    severity = ERROR if name.startswith(f"{NEW}.") else WARNING  # the old dialect was never described in full
    for keyword in unknown:
        gone = names.KEYWORDS.get((name, keyword.arg or "")) or names.KEYWORDS.get(("", keyword.arg or ""))
        if gone and name.startswith(f"{NEW}."):
            what, (remedy, who) = f"{short} no longer takes {keyword.arg}=", gone
        else:
            what, who = f"{short} has no argument {keyword.arg!r}", f"the signature of {name}"
            remedy = f"it takes {', '.join(p for p in parameters if p not in ('args', 'kwargs'))}"
        yield source.find(keyword.value, function, "TRN911", severity, what, remedy, who)
    starred = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
    if unknown or starred:
        return
    try:
        signature.bind(*node.args, **{k.arg: k.value for k in node.keywords if k.arg})
    except TypeError as error:
        first = next(iter(parameters), "")
        what = f"{short}: {error}"
        remedy = f"it takes {', '.join(parameters)}"
        if first == "dst" and name.startswith(f"{NEW}."):
            remedy = f"every function of nki.isa writes to its first argument, dst, and returns no tile; {remedy}"
        yield source.find(node, function, "TRN912", severity, what, remedy, f"the signature of {name}")


def _objects(source: SourceFile, function: ast.FunctionDef, node: ast.Call, name: str) -> Iterator[LintFinding]:
    """Strings and integers where objects are wanted."""
    if not name.startswith(f"{NEW}."):
        return
    for keyword in node.keywords:
        value = keyword.value
        if not isinstance(value, ast.Constant):
            continue
        if keyword.arg == "buffer" and isinstance(value.value, str):
            yield source.find(
                value,
                function,
                "TRN913",
                ERROR,
                f"a memory region as a string, {value.value!r}",
                f"write buffer=nl.{value.value}",
                f"{MIGRATION}, 0.3.0",
            )
        elif keyword.arg in _ENUMS and isinstance(value.value, int) and not isinstance(value.value, bool):
            yield source.find(
                value,
                function,
                "TRN913",
                WARNING,
                f"a number for {keyword.arg}=",
                f"write a member of nisa.{_ENUMS[keyword.arg]}",
                f"{MIGRATION}, 0.3.0",
            )


def _result(source: SourceFile, function: ast.FunctionDef, node: ast.stmt) -> Iterator[LintFinding]:
    """t[...] = nisa.f(...): a handle is no tile; t[...] += nl.f(...): a tile has no operators."""
    value = getattr(node, "value", None)
    targets = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    )
    if not isinstance(value, ast.Call) or not any(isinstance(t, ast.Subscript) for t in targets):
        return
    name = source.resolve(value.func)
    adds = isinstance(node, ast.AugAssign) and name.startswith(f"{NEW}.")
    if (adds or name.startswith(f"{NEW}.isa.")) and any(_base_is_tensor(source, function, t) for t in targets):
        short = name.split(".", 1)[1].replace("isa.", "nisa.").replace("language.", "nl.")
        what = f"the result of {short} is {'added' if adds else 'assigned'} to a part of a tile"
        way = "pass the tile as dst=" if ".isa." in name else "write t[...] = nl.add(t[...], value)"
        yield source.find(node, function, "TRN917", ERROR, what, way, f"{MIGRATION}, 0.2.0")


def _base_is_tensor(source: SourceFile, function: ast.FunctionDef, target: ast.expr) -> bool:
    """Whether t in t[...] is a tensor for all that the function says: made by nl, and no list or dict."""
    if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
        return False
    makers = [
        source.resolve(n.value.func)
        for n in ast.walk(function)
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and any(isinstance(t, ast.Name) and t.id == target.value.id for t in n.targets)
    ]
    return bool(makers) and all(m.startswith(f"{NEW}.language.") for m in makers)


# -- loops on the device ------------------------------------------------------------------------------------------
def _loops(source: SourceFile, function: ast.FunctionDef) -> Iterator[LintFinding]:
    bodies = {n.name: n for n in ast.walk(function) if isinstance(n, ast.FunctionDef)}
    dynamic = (f"{NEW}.language.dynamic_range", f"{NEW}.language.fori_loop", f"{NEW}.language.while_loop")
    where = f"{MIGRATION}, 0.6.0"
    for node in ast.walk(function):
        if isinstance(node, ast.With) and any(_is_no_reorder(source, item) for item in node.items):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and source.resolve(inner.func) in dynamic:
                    yield source.find(
                        inner,
                        function,
                        "TRN904",
                        ERROR,
                        "a loop on the device within nl.no_reorder()",
                        "open the no_reorder block inside the loop's body",
                        where,
                    )
        if not isinstance(node, ast.Call):
            continue
        name = source.resolve(node.func)
        body = bodies.get(node.args[-1].id) if node.args and isinstance(node.args[-1], ast.Name) else None
        if body is None or name not in dynamic[1:]:
            continue
        values = [r for r in ast.walk(body) if isinstance(r, ast.Return) and r.value is not None]
        if name == dynamic[1] and values:
            yield source.find(
                values[0],
                function,
                "TRN904",
                ERROR,
                "the body of fori_loop returns a value",
                "keep what the next iteration needs in a tile, and write to it in place",
                where,
            )
        if name == dynamic[2] and not values:
            yield source.find(
                body,
                function,
                "TRN904",
                ERROR,
                "the body of while_loop returns nothing",
                "return the register that says whether to go on",
                where,
            )


def _is_no_reorder(source: SourceFile, item: ast.withitem) -> bool:
    call = item.context_expr
    return source.resolve(call.func if isinstance(call, ast.Call) else call) == f"{NEW}.language.no_reorder"
