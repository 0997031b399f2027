# SPDX-License-Identifier: Apache-2.0
"""Loops: functions that are compiled to machine code, ahead of time where that was done, else by Numba at first use.

`python -m trnlab.loops` makes them all, for `make` and for wheels (ADR 93). What was made is used without importing
Numba, which takes longer than loading it; what was not, or from other sources than these, Numba compiles when it is
first called, and keeps. Both ways give the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trnlab.loops import compile_progress, kinds, prebuilt

__all__ = ["CompiledLoop", "Exported", "External", "LazyFunction", "compiled", "intrinsic"]

Function = Callable[..., Any]
LOOPS: dict[str, CompiledLoop] = {}  # of the modules that were imported
EXPORTS: dict[str, Exported] = {}
_OF_NUMBA = frozenset({"targetoptions", "py_func", "signatures", "overloads", "stats"})
KEEP = [True]  # whether Numba keeps what it compiles


class LazyFunction:
    """A function for compiled callers. make: what Numba makes of it, asked for when it is needed."""

    def __init__(self, function: Function, make: Callable[[Function], Any]) -> None:
        functools.update_wrapper(self, function)
        self.function, self._make = function, make

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's."""
        compile_progress.listen()
        return self._make(self.function)

    @property
    def _numba_type_(self) -> Any:
        """What Numba takes it for where it compiles a caller."""
        from numba.core.registry import cpu_target

        dispatcher, context = self.dispatcher, cpu_target.typing_context
        context.refresh()  # it may be an intrinsic that was made since
        return context.resolve_value_type(dispatcher)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_NUMBA:
            return getattr(self.dispatcher, name)
        raise AttributeError(name)

    def __call__(self, *args: Any) -> Any:
        """As Numba's."""
        return self.dispatcher(*args)


class CompiledLoop(LazyFunction):
    """A function that Python calls, and perhaps other loops."""

    def __init__(self, function: Function, make: Callable[[Function], Any]) -> None:
        super().__init__(function, make)
        self._entries: dict[Any, Function] = {}  # by what the arguments are like
        self.name = f"{function.__module__}.{function.__name__}"  # by which it is found among what was made
        LOOPS[self.name] = self

    def __call__(self, *args: Any) -> Any:
        """Call what was made of it for such arguments."""
        like = tuple(map(kinds.shape_of, args))
        entry = self._entries.get(like)
        if entry is None:
            entry = self._entries[like] = self._find(args)
        return entry(*args)

    def _find(self, args: tuple[Any, ...]) -> Function:
        names = [kinds.name_of(arg) for arg in args]
        if None not in names and (made := prebuilt.entry(self.name, f"({', '.join(map(str, names))})")) is not None:
            return made
        dispatcher: Function = self.dispatcher
        return dispatcher


class External:
    """A function of a library, for compiled callers."""

    def __init__(self, symbol: str, signature: kinds.Signature) -> None:
        self.symbol, self.signature = symbol, signature

    if TYPE_CHECKING:  # by compiled code alone

        def __call__(self, *args: Any) -> Any:
            """What it computes."""

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from numba import types

        return types.ExternalFunction(self.symbol, self.signature.numba())


class Exported(External):
    """A loop that compiled code calls by its symbol. compiled: what Numba made of it."""

    def __init__(self, symbol: str, signature: kinds.Signature, function: Function) -> None:
        super().__init__(symbol, signature)
        self.function, self.compiled = function, None
        EXPORTS[symbol] = self


def intrinsic(function: Function) -> LazyFunction:
    """Decorator: as `numba.extending.intrinsic`."""

    def make(function: Function) -> Any:
        from numba.extending import intrinsic as of_numba

        return of_numba(function)

    return LazyFunction(function, make)


def compiled(function: Function | None = None, **options: Any) -> Any:
    """Decorator: as `numba.njit(cache=True, **options)`."""
    if function is None:
        return functools.partial(compiled, **options)

    def make(function: Function) -> Any:
        from numba import njit

        return njit(cache=KEEP[0], **options)(function)

    return CompiledLoop(function, make)
