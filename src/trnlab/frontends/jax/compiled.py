# SPDX-License-Identifier: Apache-2.0
"""`jit`: a function as `jax.jit` compiles it, run on the simulated chip.

JAX traces the function and keeps what it traced under its own rules (shapes, types, static arguments, its settings);
each of those traces is one program here. JAX writes it as StableHLO, for a CPU, which makes no assumption about
devices, and `frontends.stablehlo` reads that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trnlab.frontends.common import engine
from trnlab.frontends.jax.arrays import from_array, to_array
from trnlab.frontends.jax.kernels import for_chip
from trnlab.frontends.stablehlo import SegmentedProgram, import_module
from trnlab.frontends.stablehlo.formats import in_precision
from trnlab.precision import PrecisionRules
from trnlab.runtime import session
from trnlab.runtime.notices import say

Array = np.ndarray[Any, Any]
Formats = tuple["str | None", "str | Path | PrecisionRules | None"]  # precision and rules
_MOST_PROGRAMS = 32  # that one function keeps; the one that was not used for longest goes first


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    step: bool | None = None,
    precision: str | None = None,
    precision_rules: str | Path | PrecisionRules | None = None,
    **options: Any,
) -> Any:
    """`fun`, compiled for the simulated chip on its first call with new shapes; takes and gives pytrees.

    The arguments are those of `jax.jit`, and mean what they mean there. step: whether a call is a training step, its
    loss the first scalar that it returns. None: it is one if an argument is donated, or if such a scalar comes
    with an argument's successor (of the same structure, shapes and types). precision, precision_rules: the mode and
    the rules (or their file) in which it computes, see docs/precision.md; None: those of the session.
    Raises, when called, UnsupportedOpError (TRN231 to TRN235) with the line of what cannot run; UsageError (TRN121,
    TRN245, TRN246) for a precision that does not exist, or not on the chip.
    """
    given = {
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
    }
    options |= {name: value for name, value in given.items() if value is not None}
    formats = precision, precision_rules
    if fun is None:
        return lambda fun: Compiled(fun, options, step, formats)
    return Compiled(fun, options, step, formats)


@dataclass
class _Trace:
    """One trace of a function, and its program. donated: which leaves of the arguments are."""

    jaxpr: Any
    program: SegmentedProgram
    run: Callable[[Sequence[Array]], list[Array]]
    outputs: list[Any]
    tree: Any
    donated: list[bool]
    step: bool


class Compiled:
    """See `jit`. `program` is that of the latest call, `graph` its graph (None where it has several)."""

    def __init__(
        self, fun: Callable[..., Any], options: Mapping[str, Any], step: bool | None, formats: Formats = (None, None)
    ) -> None:
        self._formats = formats
        self._host = jax.jit(fun, keep_unused=True, **options)
        self._step = step
        self._static = _static(fun, options)
        self._names = _parameters(fun)
        self._traces: dict[Hashable, _Trace] = {}
        self.program: SegmentedProgram | None = None
        self.name = _name(fun)
        functools.update_wrapper(self, fun)

    @property
    def graph(self) -> Any:
        """The graph of the latest call."""
        return None if self.program is None else self.program.graph

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method, where it decorates one."""
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the chip; inside of another function that JAX traces, become a part of that."""
        dynamic = self._dynamic(args, kwargs)
        leaves = jax.tree.leaves(dynamic)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            if not _tracing:
                _say_once(
                    f"{self.name!r} is called while JAX transforms a function on the host, and runs there: "
                    "transform inside of the function that is compiled for the chip"
                )
            return self._host(*args, **kwargs)
        with session.computing(*self._formats):
            return self._run(args, kwargs, dynamic, leaves)

    def _run(self, args: Any, kwargs: Any, dynamic: Any, leaves: list[Any]) -> Any:
        trace = self._trace(args, kwargs, dynamic)
        self.program = trace.program
        follower = engine.follower()
        if follower is not None:
            follower.follow("jax.jit", list(trace.program.graphs()), {}, trace.step)
            result = self._host(*args, **kwargs)
            if trace.step:
                engine.current().step_done(0.0, _learned_from(leaves, trace.donated))
            return result
        kinds = trace.program.argument_types
        results = trace.run([to_array(leaf, kind) for leaf, kind in zip(leaves, kinds)])
        made = [from_array(array, like) for array, like in zip(results, trace.outputs)]
        for leaf, donated in zip(leaves, trace.donated):
            if donated and isinstance(leaf, jax.Array):
                leaf.delete()
        if trace.step:
            engine.current().step_done(_loss(made), _learned_from(leaves, trace.donated))
        return jax.tree.unflatten(trace.tree, made)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """What JAX lowers the function to, as `jax.jit(...).lower` gives it."""
        with _inside():
            return self._host.lower(*args, **kwargs)

    def _trace(self, args: Any, kwargs: Any, dynamic: Any) -> _Trace:
        with _inside():
            traced = self._host.trace(*args, **kwargs)
        key = id(traced.jaxpr), id(engine.current()), id(session.active()), session.precision_now()
        found = self._traces.pop(key, None)
        if found is None:
            found = self._compile(traced, dynamic)
            for oldest in list(self._traces)[: max(len(self._traces) + 1 - _MOST_PROGRAMS, 0)]:
                del self._traces[oldest]
        self._traces[key] = found
        return found

    def _compile(self, traced: Any, dynamic: Any) -> _Trace:
        with _inside(for_chip):
            lowered = traced.lower()
        module = lowered.compiler_ir("stablehlo")
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(dynamic)[0]]
        program = import_module(
            module, self.name, names=[_named(path, self._names, self._static[0]) for path in paths]
        )
        in_precision(program, session.asked())
        run = program.load(engine.current().compile) if engine.follower() is None else _nobody
        given = [info.donated for info in jax.tree.leaves(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))]
        donated = [d and i in program.donated for i, d in enumerate(given)]
        outputs, tree = jax.tree.flatten(traced.out_info)
        step = self._step if self._step is not None else _is_step(outputs, tree, dynamic, any(given))
        return _Trace(traced.jaxpr, program, run, list(traced.jaxpr.out_avals), tree, donated, step)

    def _dynamic(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments without those that are static, in the structure that JAX flattens."""
        numbers, names = self._static
        given = tuple(a for i, a in enumerate(args) if i not in numbers and i - len(args) not in numbers)
        return given, {k: v for k, v in kwargs.items() if k not in names}


def _nobody(arguments: Sequence[Array]) -> list[Array]:
    raise AssertionError("what is followed is computed by JAX")


# -- what JAX says of arguments ------------------------------------------------------------------------------------


def _name(fun: Callable[..., Any]) -> str:
    """What its programs are called; functions without a name, by their line."""
    name = getattr(fun, "__name__", type(fun).__name__)
    code = getattr(fun, "__code__", None)
    return f"lambda_{code.co_firstlineno}" if name == "<lambda>" and code is not None else name


def _parameters(fun: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        return []


def _static(fun: Callable[..., Any], options: Mapping[str, Any]) -> tuple[frozenset[int], frozenset[str]]:
    """Numbers and names of the static arguments; where only one is given, the signature tells the other."""
    numbers, names = options.get("static_argnums"), options.get("static_argnames")
    numbers = () if numbers is None else (numbers,) if isinstance(numbers, int) else tuple(numbers)
    names = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    known = _parameters(fun)
    if names and not numbers:
        numbers = tuple(known.index(n) for n in names if n in known)
    elif numbers and not names:
        names = tuple(known[i] for i in numbers if -len(known) <= i < len(known))
    return frozenset(numbers), frozenset(names)


def _named(path: Any, names: Sequence[str], static: frozenset[int]) -> str:
    """An array of the arguments by name: the parameter's, and the way from there."""
    kind, place, *rest = path
    if kind.idx == 1:
        return f"{place.key}{jax.tree_util.keystr(tuple(rest))}"
    left = [name for i, name in enumerate(names) if i not in static]
    first = left[place.idx] if place.idx < len(left) else f"arg{place.idx}"
    return f"{first}{jax.tree_util.keystr(tuple(rest))}"


# -- training steps ------------------------------------------------------------------------------------------------


def _is_step(outputs: Sequence[Any], tree: Any, dynamic: Any, donates: bool) -> bool:
    """Whether a function returns a loss, and takes what it returns again."""
    if not any(_is_loss(o) for o in outputs):
        return False
    parts = tree.children() if tree.num_nodes > 1 else [tree]
    results, begin = set(), 0
    for part in parts:
        leaves = outputs[begin : begin + part.num_leaves]
        begin += part.num_leaves
        if any(o.ndim for o in leaves):
            results.add((part, tuple((o.shape, o.dtype) for o in leaves)))
    given = [jax.tree.flatten(argument) for argument in (*dynamic[0], *dynamic[1].values())]
    return donates or any((t, tuple((np.shape(x), _dtype(x)) for x in leaves)) in results for leaves, t in given)


def _dtype(leaf: Any) -> Any:
    return getattr(leaf, "dtype", None)


def _is_loss(output: Any) -> bool:
    return output.shape == () and bool(jax.numpy.issubdtype(output.dtype, jax.numpy.floating))


def _loss(made: Sequence[Any]) -> float:
    return float(next((x for x in made if _is_loss(x)), np.nan))


def _learned_from(leaves: Sequence[Any], donated: Sequence[bool]) -> int:
    """How many tokens, or else samples, are in the batch: see `counted`."""
    arrays = [x for x, d in zip(leaves, donated) if not d and _dtype(x) is not None and not _is_key(x)]
    return engine.counted([(np.shape(x), str(x.dtype)) for x in arrays])[0]


def _is_key(leaf: Any) -> bool:
    return bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended))


# -- while JAX traces ----------------------------------------------------------------------------------------------

_tracing: list[bool] = []
_said: set[str] = set()


@contextmanager
def _inside(more: list[bool] | None = None) -> Iterator[None]:
    """While JAX traces (and, with `for_chip`, lowers) for the chip: what is called becomes a part of the program."""
    marks = [_tracing, *([] if more is None else [more])]
    for mark in marks:
        mark.append(True)
    try:
        yield
    finally:
        for mark in marks:
            mark.pop()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        say(text)
