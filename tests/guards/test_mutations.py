# SPDX-License-Identifier: Apache-2.0
"""Whatever of Python's state a function depends on, both kernels and captured steps notice when it changes.

Each case of `mutations.txt` is a module whose function `f` reads something, and a statement that changes what it
reads. Kernels look at it through `Guards`, which find what the function may read before it runs; steps through an
`StateSnapshot`, which is told of the functions that run. What says nothing of its state may be recorded anew each
time.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trnlab.guards.functions import Guards
from trnlab.guards.installed import package_of
from trnlab.guards.nodes import MentionedNames, StateNode
from trnlab.guards.state_snapshot import StateSnapshot
from trnlab.guards.watch import FunctionWatch

CONFIG = """
class Config:
    limit = 3.0

    def __init__(self, scale=2.0):
        self.scale = scale
"""


@dataclass(frozen=True)
class Case:
    """Sources of modules, the last of which has a function `f`, and what changes in it."""

    sources: dict[str, str]
    change: str


def _cases() -> dict[str, Case]:
    """The blocks of `mutations.txt`: `== name`, then `-- module` and its source, the last one `-- change`."""
    found = {}
    text = (Path(__file__).parent / "mutations.txt").read_text()
    for block in f"\n{text}".split("\n== ")[1:]:
        name, _, rest = block.partition("\n")
        parts = dict(part.partition("\n")[::2] for part in f"\n{rest}".split("\n-- ")[1:])
        change = parts.pop("change")
        found[name] = Case({"extra_config": CONFIG, **parts}, change)
    return found


CASES = _cases()
# What may be recorded anew each time, because it does not say how far it is, or because reading it changes it.
UNSTABLE = {
    "cached_property",
    "copy",
    "pickle",
    "pickle state",
    "__reduce_ex__",
    "sys.modules",
    "sys.modules of another",
    "iterator",
    "count",
    "generator object",
    "lru_cache global",
}


class Plain:
    """No framework: nothing is a tensor."""

    def library(self, file: str) -> bool:
        return package_of(file) is not None

    def names_only(self, file: str) -> bool:
        return False

    def is_tensor(self, value: Any) -> bool:
        return False

    def is_traced(self, value: Any) -> bool:
        return False

    def is_value(self, value: Any) -> bool:
        return False

    def node(self, value: Any, label: str, names: MentionedNames) -> StateNode | None:
        return None


class Kernel:
    """The state that a recorded kernel depends on."""

    def __init__(self, function: Any) -> None:
        self.guards = Guards({"the kernel": function})
        function()
        if self.guards.failed():
            self.guards = self.guards.again()  # running it has loaded a module, or kept a result

    def changed(self) -> str | None:
        return self.guards.failed()


class Step:
    """The state that a captured step depends on."""

    def __init__(self, function: Any) -> None:
        self.image = StateSnapshot(Plain())
        self.image.visit(function, "the step")
        with FunctionWatch(self.image) as watch:
            function()
        self.done = list(self.image.done())
        self.noted = [*watch.noted, *self.image.unreadable]

    def changed(self) -> str | None:
        if self.noted:
            return f"{self.noted[0]} says nothing of its state"
        found = self.image.failed()
        self.image.accept() if found is None else self.image.reject()
        return None if found is None else str(found)


@pytest.fixture
def module(request: pytest.FixtureRequest) -> Iterator[types.ModuleType]:
    case = CASES[request.param]
    before = dict(sys.modules)
    environment = dict(os.environ)
    sources = case.sources
    made = {name: _module(name, any(other.startswith(f"{name}.") for other in sources)) for name in sources}
    for name, text in sources.items():
        exec(compile(text, str(made[name].__file__), "exec"), vars(made[name]))
    yield made["main"]
    for name in set(sys.modules) - set(before):
        if name == "main" or name.startswith("extra_"):
            del sys.modules[name]
    for name in set(os.environ) - set(environment):
        del os.environ[name]


def _module(name: str, package: bool) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__file__ = f"/nowhere/{name}.py"
    parent, _, own = name.rpartition(".")
    made.__package__ = name if package else parent
    if package:
        made.__path__ = []
    sys.modules[name] = made
    if parent:
        setattr(sys.modules[parent], own, made)
    return made


@pytest.mark.parametrize("system", [Kernel, Step])
@pytest.mark.parametrize("module", CASES, indirect=True)
def test_what_a_function_reads_is_noticed_when_it_changes(
    module: types.ModuleType, system: Any, request: pytest.FixtureRequest
):
    name = request.node.callspec.params["module"]
    seen = system(module.f)
    if name not in UNSTABLE:
        assert not seen.changed()
    exec(CASES[name].change, vars(module))
    assert seen.changed()
