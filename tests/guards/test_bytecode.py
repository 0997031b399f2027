# SPDX-License-Identifier: Apache-2.0
"""The one reader of bytecode finds every name that code mentions, and says where code does not show it."""

from __future__ import annotations

from typing import Any

import pytest

from trnlab.guards.bytecode import Import, NameRead, ReferencedNames, referenced_names

# what a function does, what it must be found to mention
ATTRIBUTES = {
    "x.a.b": {"a", "b"},
    "x.m()": {"m"},
    "super().a": {"a"},
    "getattr(x, 'a')": {"a"},
    "getattr(f(1, 2), 'a', g(3))": {"a"},
    "[getattr(y, 'a') for y in x]": {"a"},
    "operator.attrgetter('a.b')(x)": {"a", "b"},
    "operator.methodcaller('a', 1)(x)": {"a"},
    "vars(x).get('a')": {"a"},
    "'{0.a}'.format(x)": {"a"},
    "(lambda: x.a)()": {"a"},
}
HIDDEN = (
    "getattr(x, n)",
    "getattr(x, n, 'a')",
    "getattr(f('a', 'b'), n)",
    "getattr(x, 'a' + n)",
    "getattr(x, 'a' if n else 'b')",
    "getattr(*x)",
    "map(getattr, x, ['a'])",
    "operator.attrgetter('a', n)(x)",
    "operator.methodcaller(n)(x)",
    "object.__getattribute__(x, 'a')",
    "vars(x)",
    "x.__dict__",
    "dataclasses.astuple(x)",
    "inspect.getmembers(x)",
    "pickle.loads(x)",
    "[getattr(y, n) for y in x]",
)


def of(body: str) -> ReferencedNames:
    """Of a function with this body, which is an expression or statements."""
    names: dict[str, Any] = {}
    lines = body.splitlines() if "\n" in body else [f"return {body}" if not body.startswith("from") else body]
    exec("class C:\n  def function(self):\n" + "\n".join(f"    {line}" for line in lines), names)
    return referenced_names(names["C"].function.__code__)


@pytest.mark.parametrize("body", ATTRIBUTES)
def test_attributes_are_found_by_name(body: str):
    found = of(body)
    assert found.attributes >= ATTRIBUTES[body]
    if not body.startswith("vars"):
        assert not found.any_attribute


@pytest.mark.parametrize("body", HIDDEN)
def test_names_that_code_does_not_show_are_any(body: str):
    assert of(body).any_attribute


def test_patterns_read_attributes():
    found = of("match x:\n  case C(a=1, b=2): return 1")
    assert found.attributes >= {"a", "b"}
    assert not found.any_attribute
    assert of("match x:\n  case C(1): return 1").any_attribute


def test_globals_that_are_read_set_and_deleted():
    found = of("global b, c\nb = a\ndel c\nclass D:\n  e = d")
    assert found.globals >= {"a", "b", "c", "d"}
    assert NameRead("global", "a") in found.reads
    assert not any(read.name in ("b", "c") for read in found.reads)
    assert not found.any_global
    for body in ("globals()['a']", "f.__globals__['a']", "sys.modules[__name__].a"):
        assert of(body).any_global, body
    assert not of("self.modules()").any_global


def test_chains_of_attributes_and_cells():
    def outer() -> Any:
        cell: Any = None

        def inner() -> Any:
            return (lambda: cell.a.b)()

        return inner

    assert NameRead("cell", "cell", ("a", "b")) in referenced_names(outer().__code__).reads
    assert NameRead("global", "x", ("a", "b")) in of("x.a.b").reads


IMPORTS = {
    "import a": ("a",),
    "import a.b": ("a", "a.b"),
    "import a.b as c": ("a", "a.b"),
    "from a import b": ("a",),
    "from .a import b": ("p.q.a",),
    "from . import a": ("p.q",),
    "from ..a import b": ("p.a",),
}


@pytest.mark.parametrize(
    "package", [{"__package__": "p.q"}, {"__name__": "p.q.m"}, {"__name__": "p.q", "__path__": []}]
)
@pytest.mark.parametrize("body", IMPORTS)
def test_imports_name_the_modules_that_are_read(body: str, package: dict[str, Any]):
    (found,) = of(f"{body}\nreturn 1").imports
    assert found.modules(package) == IMPORTS[body]


def test_modules_that_are_looked_up_by_a_string():
    for body in ("importlib.import_module('a.b')", "__import__('a.b')", "sys.modules['a.b']"):
        assert Import("a.b") in of(body).imports
