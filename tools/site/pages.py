# SPDX-License-Identifier: Apache-2.0
"""The order of pages, the first page's beginning, and what stands on pages of the API.

Nothing of this is written a second time: lists of pages are added to `docs/index.md` and `docs/adr/README.md` when
they are read, the first page begins with README's first screen, and a comment `<!-- api: MODULE ... -->` on a page
becomes what those modules offer.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIRST = "docs/index"
END_OF_FIRST_SCREEN = "<!-- end of the first screen -->"
PLACE_OF_FIRST_SCREEN = "<!-- the site shows the beginning of README.md here -->"
GROUPS = {
    "Start": "installation scope speed pytorch hugging_face tutorials/jax tensorflow settings",
    "Kernels": "kernels tutorials/first_kernel tutorials/fast_matmul tutorials/why_this_long tutorials/laboratory "
    "tutorials/several_cores tutorials/many_instances tutorials/kernels_in_pytorch tutorials/porting bench refusals "
    "checks graphs",
    "Look at a run": "profile summary verify precision functions ui",
    "Port a script": "check scripts buckets operators jax_functions models vendor_libraries versions errors",
    "Plan": "journeys/README plan serving bakeoff goodput stacks fabric validation",
    "Operate": "distributed torch_distributed_tests cache checkpoints data faults monitor doctor trust",
    "Python": "api/README api/kernels api/frameworks api/training api/laboratory api/planning api/hardware "
    "api/programs api/results",
    "The project": "architecture adr/README /CHANGELOG /CONTRIBUTING",
}
DECISIONS, JOURNEYS = "docs/adr/README", "docs/journeys/README"
_AT: dict[str, str] = {}  # what is offered, and the module under which the index has it
_API = re.compile(r"^<!-- api: (.*) -->$", re.MULTILINE)


def first_screen() -> str:
    """README's beginning without its title, its links as `docs/index.md` has them."""
    text = (ROOT / "README.md").read_text().partition(END_OF_FIRST_SCREEN)[0].partition("\n")[2]
    return text.replace("](docs/", "](")


def contents(title: str, pages: list[str]) -> str:
    """A list of pages for the side of the site, which pages themselves do not show."""
    lines = ["```{toctree}", ":hidden:", *([f":caption: {title}"] if title else []), "", *pages, "```"]
    return "\n".join(lines)


def with_contents(name: str, text: str) -> str:
    """A page as Sphinx reads it."""
    if name == FIRST:
        text = text.replace(PLACE_OF_FIRST_SCREEN, first_screen())
        text = text.replace("# trnlab's documentation", "# trnlab", 1)
        return "\n\n".join([text, *(contents(title, pages.split()) for title, pages in GROUPS.items())])
    if name == DECISIONS:
        found = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
        text += "\n" + "\n".join(f"- [{_title(path)}]({path.name})" for path in found) + "\n"
    if name == JOURNEYS:
        text += "\n\n" + contents("", [path.stem for path in sorted((ROOT / "docs/journeys").glob("[0-9]*.md"))])
    return _API.sub(lambda found: "\n\n".join(map(reference, found[1].split())), text)


def _title(path: Path) -> str:
    with path.open() as file:
        return file.readline().removeprefix("# ").strip()


def reference(name: str) -> str:
    """A section on a module: what its docstring says, and each public name by autodoc."""
    module = importlib.import_module(name)
    lines = [f".. automodule:: {name}", "   :no-members:", ""]
    for public, value in _public(module):
        if not callable(value):
            continue
        again = _AT.setdefault(f"{value.__module__}.{value.__qualname__}", name) != name if _named(value) else False
        index = ["   :no-index:"] if again else []
        if inspect.isclass(value):
            bases = ["   :show-inheritance:"] if issubclass(value, Exception) else []
            lines += [f".. autoclass:: {name}.{public}", "   :members:", *bases, *index, ""]
        else:
            lines += [f".. autofunction:: {name}.{public}", *index, ""]
    return "\n".join([f"## `{name}`", "", "```{eval-rst}", *lines, "```"])


def _named(value: Any) -> bool:
    return hasattr(value, "__qualname__") and hasattr(value, "__module__")


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Names that a module offers: those of `__all__`, without it those that are defined in it."""
    names = list(getattr(module, "__all__", ()))
    names += sorted(name for name in vars(module) if not name.startswith("_") and name not in names)
    for name in names:
        value = getattr(module, name)
        offered = name in getattr(module, "__all__", ()) or getattr(value, "__module__", "") == module.__name__
        if offered and not inspect.ismodule(value):
            yield name, value


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""

    def read(_: Any, name: str, content: list[str]) -> None:
        if name.startswith("docs/adr/") and name != DECISIONS:  # in the list of decisions, not beside every page
            app.env.metadata[name]["orphan"] = True
        content[0] = with_contents(name, content[0])

    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
