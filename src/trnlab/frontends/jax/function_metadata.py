# SPDX-License-Identifier: Apache-2.0
"""What JAX says of a function that it compiles: whose it is, what its arguments and results are called, its effects.

A function of the script, or of a library that the script uses, is compiled as a whole; one of JAX's own is an
operator by itself, which XLA runs on the host.
"""

from __future__ import annotations

import os
import re
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trnlab.errors import TrnlabError, UnsupportedOpError
from trnlab.frontends.common.engine import Counted, GraphEngine, counted, optimizer_stepped
from trnlab.frontends.unedited import LEFT
from trnlab.runtime.notices import say

Array = np.ndarray[Any, Any]
Kind = tuple[tuple[int, ...], str]
_JAX = str(Path(jax.__file__).parent) + os.sep
_WRAPPERS = (f"{_JAX}_src{os.sep}pmap.py",)  # functions of JAX that stand for one of the script
_LOOPS = ("scan", "while", "cond")  # operators that hold code of the script
_KEY = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\")\]|\.(\w+)")
# Of Equinox' filter_jit: of all arguments, by number.
_LEAF = re.compile(r"dynamic_(no)?donate\['(first|rest)'\]\[\d+\]")
_MODEL = re.compile(r"\w+\.(model|params|target)\b")  # what an optimizer keeps beside its own state
_ITEMS = re.compile(r"^\w*(\[\d+\])+")  # where in a tuple a result is
_INDEX = re.compile(r"\[\d+\]")
_KEYS = re.compile(r"\[['\"](?!.*\.\w+(?:\[|$)).*$")  # the keys behind the last attribute


@dataclass
class FunctionMetadata:
    """See the head of this module."""

    name: str
    source: str
    names: list[str] | None  # of the arguments that are used
    results: list[str] | None  # paths in what is returned
    # inputs, outputs: shapes and formats in the same orders; None for what is no plain array
    inputs: list[Kind | None]
    outputs: list[Kind | None]
    obstacle: str = ""
    _loss: int | None = field(init=False)
    is_update: bool = field(init=False)
    kinds: dict[str, str] = field(init=False)
    _batch: list[int] = field(init=False)
    _told: bool = False
    _came: list[Any] = field(default_factory=list)  # arguments of the last pass that was followed

    def __post_init__(self) -> None:
        self.passes(())

    def passes(self, through: Collection[int]) -> None:
        """Told which results are arguments as they came: an evaluation returns the model's state, too."""
        succeeded = _succeeded(self, through)
        numbers = [i for i, kind in enumerate(self.outputs) if _is_loss(kind) and not self._is_kept(i)]
        called_so = [i for i in numbers if self.results is not None and "loss" in self.results[i].lower()]
        self._loss = next(iter(called_so + numbers), None)
        self.is_update = bool(succeeded)
        self.kinds = self._kinds(succeeded)
        self._batch = [i for i, kind in enumerate(self.inputs) if kind and kind[0] and i not in succeeded]

    def only_forward(self) -> None:
        """Told that the function has products and differentiates nothing. Unless it returns a loss, a result that
        looks as an argument does is no successor of it: a block's output, or a cache."""
        if self._loss is None:
            self.is_update, self.kinds = False, self._kinds(())
            self._batch = [i for i, kind in enumerate(self.inputs) if kind and kind[0]]

    def forward_pass(self, arguments: Sequence[Any]) -> tuple[dict[str, str], Counted]:
        """What the arguments of a pass that learns nothing are, and what it has of tokens or samples: parameters are
        arrays of floats that are called by a path (params['kernel']), or that came before. The last array is the
        batch's, whatever it is called."""
        known, self._came = self._came, [weakref.ref(a) if isinstance(a, jax.Array) else None for a in arguments]
        again = [ref is not None and ref() is a for ref, a in zip(known, arguments)] or [False] * len(arguments)
        names = self.names or [""] * len(self.inputs)
        arrays = [i for i, kind in enumerate(self.inputs) if kind and kind[0]]
        kept = {i for i in arrays if "float" in self.inputs[i][1] and (_tail(names[i]) or again[i])}  # type: ignore[index]
        kept -= set() if set(arrays) - kept else set(arrays[-1:])
        batch = [i for i in arrays if i not in kept]
        return {name: "parameter" if i in kept else "batch" for i, name in enumerate(names)}, self._counted(batch)

    def step(self) -> tuple[Mapping[str, str], Counted]:
        """As `forward_pass`, of a training step."""
        return self.kinds, self._counted(self._batch)

    def _counted(self, batch: Iterable[int]) -> Counted:
        return _counted([kind for i in batch if (kind := self.inputs[i]) is not None])

    def _kinds(self, succeeded: Collection[int]) -> dict[str, str]:
        """What arguments are, by name: of those that a step replaces, an optimizer's are called so, or come behind
        the parameters with the same path in a tree of their own."""
        names = list(self.names or ())
        states = _numbered_states(self, succeeded) if _is_numbered(names) else _states(names, self.inputs)
        found = {
            name: "batch" if i not in succeeded else "state" if i in states else "parameter"
            for i, name in enumerate(names)
        }
        return found if "parameter" in found.values() else _with_model(found)

    def _is_kept(self, result: int) -> bool:
        """Whether a number among the results is the next value of one among the arguments: a metric's total."""
        tail = _tail(self.results[result]) if self.results is not None else ""
        return bool(tail) and any(_tail(name) == tail for name in self.names or ())

    def require(self) -> None:
        """Raises UnsupportedOpError (TRN295) for what no program of the chip has."""
        if self.obstacle:
            raise UnsupportedOpError(
                self.obstacle, code="TRN295", remedy="keep it out of the function, or leave that on the host"
            )

    def tell(self, error: TrnlabError) -> None:
        """Say, once, that the host runs this, and why."""
        if not self._told:
            where = f", at {error.where.file}:{error.where.line}" if error.where is not None else ""
            say(f"{LEFT}: {self.name!r} runs on the host: {error.code}: {error.what.splitlines()[0]}{where}")
        self._told = True

    def followed(self, shapes: Sequence[tuple[int, ...]], engine: GraphEngine) -> None:
        """As `done`, where the script is only followed: what updates without a loss ends a step where nobody tells
        one."""
        if self._loss is not None:
            _tell_losses.add(engine)
        if self.is_update and (self._loss is not None or engine not in _tell_losses):
            given = [(shapes[i], kind[1]) for i in self._batch if (kind := self.inputs[i]) is not None]
            engine.step_done(0.0, _counted(given)[0])

    def done(self, results: Sequence[Array], arguments: Sequence[Array], engine: GraphEngine) -> None:
        """The function ran: where it is a training step, whoever keeps the run hears of it."""
        if not self.is_update:
            return
        if self._loss is None:
            optimizer_stepped()
        else:
            engine.step_done(float(results[self._loss]), _learned_from([arguments[i] for i in self._batch]))


def asked_of(name: str, values: Mapping[str, Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> FunctionMetadata:
    """From what JAX hands to its compiler: `values` by their names there, abstract values of inputs and outputs."""
    info = values.get("all_args_info")
    debug = getattr(info, "debug_info", None)
    source = str(getattr(debug, "func_src_info", "") or "")
    given = getattr(debug, "arg_names", None)
    kept = values.get("kept_var_idx") or ()
    names = [given[i] for i in sorted(kept) if i < len(given)] if given is not None else None
    paths = getattr(debug, "result_paths", None)
    shown = [str(path) for path in paths] if isinstance(paths, tuple) and len(paths) == len(outputs) else None
    obstacle = ""
    if values.get("host_callbacks") or values.get("ordered_effects") or values.get("unordered_effects"):
        obstacle = "it calls back into Python (jax.debug.print, io_callback and the like)"
    plain = re.sub(r"^\w+\((.*)\)$", r"\1", name)
    if plain == "<lambda>":
        plain = f"lambda_{source.rpartition(':')[2]}"  # by its line, as others without a name
    known = [str(n) for n in names] if names is not None and len(names) == len(inputs) else None
    return FunctionMetadata(
        plain, source, known, shown, [_kind(a) for a in inputs], [_kind(a) for a in outputs], obstacle
    )


def is_the_scripts(asked: FunctionMetadata, also: set[str]) -> bool:
    """Whether a function is of the script or a library, and not an operator of JAX. also: what was jitted by name."""
    file = asked.source.rpartition(" at ")[2].rpartition(":")[0]
    if not file or asked.source in also:
        return asked.source in also
    if file.startswith(_JAX):
        return file in _WRAPPERS or asked.name in _LOOPS
    return True


def _kind(aval: Any) -> Kind | None:
    if not hasattr(aval, "dtype") or jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return None
    return tuple(aval.shape), str(aval.dtype)


_tell_losses: weakref.WeakSet[GraphEngine] = weakref.WeakSet()  # engines in which a step has told its loss

# -- training steps ------------------------------------------------------------------------------------------------


def _is_loss(kind: Kind | None) -> bool:
    return kind is not None and kind[0] == () and "float" in kind[1]


def _succeeded(asked: FunctionMetadata, through: Collection[int]) -> set[int]:
    """The arguments whose successors, or gradients, are among the results: parameters, an optimizer's state.

    Where arguments have names within trees (params['dense']['kernel']), those of results must end alike; elsewhere
    equal shapes and formats are enough. Equinox numbers what it hands over: the results of a step have names.
    """

    def is_array(kind: Kind | None) -> bool:
        return kind is not None and len(kind[0]) > 0 and "float" in kind[1]

    tails = [_tail(name) for name in asked.names] if asked.names is not None else [""] * len(asked.inputs)
    numbered = _is_numbered(asked.names or ())
    tails = [""] * len(tails) if numbered else tails
    named = asked.results is not None and any(t and is_array(k) for t, k in zip(tails, asked.inputs))
    offered: Counter[Any] = Counter()
    for i, kind in enumerate(asked.outputs):
        tail = _tail(asked.results[i]) if asked.results is not None else ""
        if is_array(kind) and i not in through and (tail or not numbered):
            offered[tail if named else "", kind] += 1
    found = set()
    for i, (tail, kind) in enumerate(zip(tails, asked.inputs)):
        key = tail if named else "", kind
        if is_array(kind) and offered[key] and (tail or not named):
            offered[key] -= 1
            found.add(i)
    return found


def _is_numbered(names: Sequence[str]) -> bool:
    """Whether arguments are numbers in one list, as Equinox' filter_jit hands them over."""
    return bool(names) and all(map(_LEAF.fullmatch, names))


def _states(names: Sequence[str], inputs: Sequence[Kind | None]) -> set[int]:
    """The arguments that are an optimizer's, if a step replaces them: called so, or behind others with the same path
    in a tree of their own."""
    seen: dict[Any, str] = {}  # the tree that a path was met in first
    found = set()
    for i, name in enumerate(names):
        tree, path = _in_tree(name)
        first = seen.setdefault((path, inputs[i]), tree)
        later = bool(path) and first != tree and not _are_layers(first, tree)
        if ("opt" in name.lower() and not _MODEL.match(name)) or later:
            found.add(i)
    return found


def _numbered_states(asked: FunctionMetadata, succeeded: Collection[int]) -> set[int]:
    """The same of arguments that are numbers, by what their successors are called: result [1][0].mu.layers[0].weight
    ends as [0].layers[0].weight does."""
    paths: dict[Any, list[str]] = {}
    for path, kind in zip(asked.results or (), asked.outputs):
        if _tail(path):
            paths.setdefault(kind, []).append(_ITEMS.sub("", path))
    followed = [(i, _taken(paths, asked.inputs[i])) for i in sorted(succeeded)]
    ends: dict[int, str] = {}
    states = set()
    for i, path in followed:
        if any(asked.inputs[j] == asked.inputs[i] and _continues(path, end) for j, end in ends.items()):
            states.add(i)
        else:
            ends[i] = path
    return states


def _taken(paths: dict[Any, list[str]], kind: Any) -> str:
    """The first path that is left of this kind; nothing where none is."""
    left = paths.get(kind, [])
    return left.pop(0) if left else ""


def _continues(path: str, end: str) -> bool:
    return bool(end) and len(path) > len(end) and path.endswith(end)


def _with_model(kinds: dict[str, str]) -> dict[str, str]:
    """Kinds of the arguments of a step all of which are an optimizer's: it holds the model, and in front of what it
    counts itself, as ModelAndOptimizer of Flax does."""
    if "state" not in kinds.values():
        return kinds
    found, before = dict(kinds), True
    for name, kind in kinds.items():
        before = before and kind == "state"
        found[name] = "parameter" if before else kind
    return found


def _in_tree(name: str) -> tuple[str, str]:
    """The name of a tree, and a path within it by keys: state.mu[0] and ['dense']['kernel'], m and .layers[0].w."""
    keys = _KEYS.search(name)
    root = re.match(r"\w*", name)
    at = keys.start() if keys is not None else root.end() if root is not None else 0
    return name[:at], name[at:]


def _are_layers(one: str, other: str) -> bool:
    """Whether two trees are numbered parts of one that is called as parameters are, and no copies of each other."""
    roots = {_INDEX.sub("", tree.lower()) for tree in (one, other)}
    return len(roots) == 1 and any(word in root for root in roots for word in ("param", "weight", "layer", "model"))


def _tail(path: str) -> str:
    """The last key by name in a path, with the numbers behind it; nothing of state.params[0][1]."""
    keys = list(_KEY.finditer(path))
    return path[keys[-1].start() :] if keys else ""


def _counted(arrays: Iterable[tuple[tuple[int, ...], str]]) -> Counted:
    """How many tokens, or else samples, are in arrays of these shapes and formats: see `counted`."""
    return counted([form for form in arrays if form != ((2,), "uint32")])  # which is a key of random numbers


def _learned_from(arrays: Sequence[Array]) -> int:
    return _counted((a.shape, str(a.dtype)) for a in arrays)[0]
