# SPDX-License-Identifier: Apache-2.0
"""A file of kernels as `lint` sees it: what its names stand for, which functions are kernels, and what they call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from trnlab.nki.lint.finding import LintFinding

NEW, OLD = "nki", "neuronxcc.nki"
_OURS = (("trnlab.nki.neuronxcc", OLD), ("trnlab.nki", NEW))  # the same modules under our own names
_MAKERS = frozenset(
    f"{root}.{name}"
    for root in (NEW, OLD)
    for name in ("jit", "simulate", "cpu_simulate", "simulate_kernel", "baremetal", "benchmark", "profile", "trace")
)


@dataclass(frozen=True)
class KernelSource:
    """A function that becomes a kernel."""

    node: ast.FunctionDef
    made_by: str  # what makes it one, e.g. "nki.jit"
    dialect: str  # NEW or OLD
    target: str = ""  # the platform_target of what makes it one, or ""


@dataclass
class SourceFile:
    """One parsed file. aliases: local name -> dotted name of what was imported."""

    path: str
    text: str
    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    kernels: list[KernelSource] = field(default_factory=list)

    def resolve(self, node: ast.AST) -> str:
        """The dotted name that an expression stands for by the imports, or ""."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, "")
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""

    def within(self) -> Iterator[tuple[ast.FunctionDef, KernelSource]]:
        """Kernels and the functions of this file that they call, each once, with the kernel that leads there."""
        seen: set[ast.FunctionDef] = set()
        queue = [(kernel.node, kernel) for kernel in self.kernels]
        decorated = {kernel.node for kernel in self.kernels}
        while queue:
            function, kernel = queue.pop(0)
            if function in seen:
                continue
            seen.add(function)
            yield function, kernel
            inner = {n.name for n in ast.walk(function) if isinstance(n, ast.FunctionDef) and n is not function}
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id not in inner:
                    callee = self.functions.get(node.id)
                    if callee is not None and callee not in decorated:
                        queue.append((callee, kernel))

    def find(
        self, node: ast.AST, function: ast.FunctionDef, code: str, severity: str, what: str, remedy: str, source: str
    ) -> LintFinding:
        """A finding at a node."""
        line = getattr(node, "lineno", function.lineno)
        column = getattr(node, "col_offset", function.col_offset) + 1
        lines = self.text.splitlines()
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return LintFinding(self.path, line, column, code, severity, what, remedy, source, function.name, text)


def read(path: str, text: str) -> SourceFile:
    """Parse a file. Raises SyntaxError for what is not Python, or nested more deeply than anybody writes."""
    try:
        source = SourceFile(path, text, ast.parse(text, path))
        for node in ast.walk(source.tree):
            _note(source, node)
        _kernels(source)
    except (RecursionError, MemoryError):
        raise SyntaxError("it is nested too deeply", (path, 1, 1, None)) from None
    return source


def canonical(name: str) -> str:
    """The vendor's name of a module, also where it was imported under ours."""
    for ours, theirs in _OURS:
        if name == ours or name.startswith(ours + "."):
            return theirs + name[len(ours) :]
    return name


def _note(source: SourceFile, node: ast.AST) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                source.aliases[alias.asname] = canonical(alias.name)
            else:
                root = alias.name.split(".")[0]
                source.aliases[root] = root
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            source.aliases[alias.asname or alias.name] = canonical(f"{node.module}.{alias.name}")
    elif isinstance(node, ast.FunctionDef):
        source.functions.setdefault(node.name, node)
    elif isinstance(node, ast.ClassDef):
        source.classes.setdefault(node.name, node)


def _kernels(source: SourceFile) -> None:
    found: dict[ast.FunctionDef, KernelSource] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                maker = _maker(source, decorator)
                if maker:
                    found[node] = KernelSource(node, maker, _dialect(maker), _target(decorator))
        elif isinstance(node, ast.Call):  # nki.jit(f), nki.benchmark(warmup=1)(f)
            maker = _maker(source, node.func)
            first = node.args[0] if node.args else None
            function = source.functions.get(first.id) if isinstance(first, ast.Name) else None
            if maker and function is not None:
                found.setdefault(function, KernelSource(function, maker, _dialect(maker), _target(node)))
    source.kernels = sorted(found.values(), key=lambda kernel: kernel.node.lineno)


def _maker(source: SourceFile, node: ast.AST) -> str:
    name = source.resolve(node.func if isinstance(node, ast.Call) else node)
    return name if name in _MAKERS else ""


def _target(node: ast.AST) -> str:
    """The platform_target= of a call, where it is written out."""
    for keyword in node.keywords if isinstance(node, ast.Call) else ():
        if keyword.arg == "platform_target" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value or "")
    return ""


def _dialect(maker: str) -> str:
    return OLD if maker.startswith(OLD) else NEW
