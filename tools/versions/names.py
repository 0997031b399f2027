# SPDX-License-Identifier: Apache-2.0
"""The private names of PyTorch that trnlab uses, as its source has them, and which of them a release lacks.

    python -m tools.versions.names             # as JSON: the names, and those that the PyTorch of this Python lacks

Names of modules (`torch._dynamo.guards.install_guard`) are those of `trnlab.frontends.torch.pytorch`, the one place
where they may be. Members of objects (`tensor._version`) cannot be told from names of ours by looking; those that
trnlab itself defines nowhere are PyTorch's, or the standard library's, and `members.toml` says whose.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "trnlab"
PLACE = SOURCE / "frontends" / "torch" / "pytorch"
MEMBERS = Path(__file__).parent / "members.toml"
_BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "object"}  # `patch.object`
_OURS = ("self", "cls")
_OF_OTHERS = ("lightning.py",)  # its private members are Lightning's
_EXPERIMENTAL = ("torch.utils.backend_registration", "torch.fx.experimental", "torch.distributed.tensor.experimental")
_OPERATORS = re.compile(r"torch\.ops\.\w+\.")  # an operator's name may begin with "_"


def is_private(name: str) -> bool:
    """Whether a dotted name of PyTorch has a private part, or is of what PyTorch calls experimental."""
    if name.partition(".")[0] not in ("torch", "functorch") or _OPERATORS.match(name):
        return False
    parts = name.split(".")[1:]
    return name.startswith((*_EXPERIMENTAL, "functorch.")) or any(map(_is_hidden, parts))


def _is_hidden(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def of_modules(path: Path) -> set[str]:
    """The private names that a file takes from PyTorch's modules: imported, as attributes, named in a text, and in
    pairs as `patch.object` takes them."""
    tree = ast.parse(path.read_text())
    aliases = _aliases(tree)
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0):
                found |= {f"{module}.{alias.name}" for alias in node.names}
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.Tuple(elts=[(ast.Name() | ast.Attribute()) as owner, ast.Constant(value=str(name))]):
                found.add(_full(f"{_dotted(owner)}.{name}", aliases))
            case ast.Attribute() if id(node) not in inner:
                found.add(_full(_dotted(node), aliases))
            case ast.Constant(value=str(text)) if re.fullmatch(r"torch(\.\w+)+", text):
                found.add(text)
    return {name for name in map(_of_module, found) if is_private(name)}


def _of_module(name: str) -> str:
    """A name without what follows a public class: whose members those are, `members.toml` says."""
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part[:1].isupper() and part != "_C"), len(parts))
    owner = ".".join(parts[: at + 1])
    return name if is_private(owner) else owner


def _full(name: str, aliases: dict[str, str]) -> str:
    first, _, rest = name.partition(".")
    return f"{aliases.get(first, first)}.{rest}"


def _aliases(tree: ast.AST) -> dict[str, str]:
    """What imported names of PyTorch stand for: `dist` for `torch.distributed`."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return found


def _dotted(node: ast.expr) -> str:
    """`torch.a.b` as text; "" where it begins with something else than a name."""
    parts: list[str] = []
    at = node
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    return ".".join([at.id, *reversed(parts)]) if isinstance(at, ast.Name) else ""


def outside() -> dict[str, set[str]]:
    """By file: private names of PyTorch's modules that are not where they belong."""
    files = (path for path in sorted(SOURCE.rglob("*.py")) if PLACE not in path.parents)
    found = {str(path.relative_to(SOURCE)): of_modules(path) for path in files if "torch" in path.read_text()}
    return {file: names for file, names in found.items() if names}


def used() -> list[str]:
    """All private names of PyTorch's modules that trnlab uses."""
    return sorted(set().union(*(of_modules(path) for path in PLACE.glob("*.py"))))


# -- members of objects ---------------------------------------------------------------------------------------------


def members() -> dict[str, list[str]]:
    """By file and line: private members that trnlab reads or replaces and that it defines nowhere."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    known = {part for name in used() for part in name.split(".")}.union(*map(_defined, trees.values()))
    found: dict[str, list[str]] = {}
    for path, tree in trees.items():
        if (SOURCE / "frontends" / "torch") in path.parents and path.name not in _OF_OTHERS:
            for line, name in _members(tree):
                if _is_hidden(name) and name not in known:
                    found.setdefault(name, []).append(f"{path.relative_to(SOURCE)}:{line}")
    return found


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _dotted(node.value) in _OURS:
            yield node.attr


def _members(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_private(_dotted(node)) and not _of_operators(node):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _BY_NAME and isinstance(node.args[1].value, str):
                yield node.lineno, node.args[1].value


def _of_operators(node: ast.Attribute) -> bool:
    """Whether this is an operator of a library, or a function of the standard library."""
    whole = _dotted(node)
    return "torch.ops" in whole or whole.partition(".")[0].lower().strip("_") in ("aten", "ops", "sys", "os")


def table(release: tuple[int, int] | None = None) -> dict[str, list[str]]:
    """`members.toml`: by what has them, the private members that trnlab uses, in a release; in any where None."""
    found: dict[str, list[str]] = {}
    for span, owners in tomllib.loads(MEMBERS.read_text()).items():
        if release is None or span == "members" or _is_in(release, span):
            for owner, names in owners.items():
                found.setdefault(owner, []).extend(names)
    return found


def _is_in(release: tuple[int, int], span: str) -> bool:
    first, last = (tuple(map(int, text.split("."))) for text in span.split(" to "))
    return first <= release <= last


# -- in a release ---------------------------------------------------------------------------------------------------


def installed() -> tuple[int, int]:
    """The release of PyTorch that this Python has, as (2, 15)."""
    major, minor, *_ = version("torch").split(".")
    return int(major), int(minor)


def missing() -> list[str]:
    """Which of all of these the PyTorch that is installed lacks."""
    theirs = [(owner, name) for owner, names in table(installed()).items() for name in names]
    lacking = [name for name in used() if not _is_there(name)]
    return lacking + [f"{owner}: {name}" for owner, name in theirs if not has(owner, name)]


def _is_there(name: str) -> bool:
    return _resolved(name) is not _NOTHING


_NOTHING = object()


def _resolved(name: str) -> Any:
    """A module or what is in one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, _NOTHING)
        return found
    return _NOTHING


def has(owner: str, name: str) -> bool:
    """Whether a class, or an instance as far as the text of its module says, has a member of this name."""
    found = _resolved(owner)
    if found is _NOTHING:
        return False
    return hasattr(found, name) or re.search(rf"\b{name}\b", _text(found)) is not None


def _text(found: Any) -> str:
    try:
        return inspect.getsource(inspect.getmodule(found) or found)
    except (OSError, TypeError):  # of C++
        return ""


def main() -> None:
    """Write the names, and those that are missing, as JSON."""
    print(json.dumps({"used": used(), "members": table(), "missing": missing()}))


if __name__ == "__main__":
    main()
