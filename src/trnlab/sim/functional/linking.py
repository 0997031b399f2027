# SPDX-License-Identifier: Apache-2.0
"""How the simulator's loops are compiled: each exported loop once, under a symbol of its own, and cached on disk.

Numba compiles a function together with everything it calls, again at each level of calls. A loop marked `exported`
is instead compiled alone, when it is first called, and called through its symbol, as from a C library, which keeps
the first start short. `jit` is for the small functions that should be inlined into the loops.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from trnlab.loops import CompiledLoop, Exported, LazyFunction, prebuilt
from trnlab.loops.kinds import Signature
from trnlab.loops.places import VERSIONED
from trnlab.loops.vectors import LANES, REGISTERS
from trnlab.sources import source_digest

if TYPE_CHECKING:
    from trnlab.sim.functional.binding import Stubs

Function = Callable[..., Any]
_PREFIX = "trnlab_"
_TABLES = (  # modules whose numbers are compiled into the loops
    "numerics/dtypes.py",
    "numerics/mx.py",
    "isa/alu.py",
    "isa/activations.py",
    "program/access.py",
    "program/routine.py",
)


_EXPORTS: list[Exported] = []
_STUBS: list[Stubs[Any]] = []  # of all that are linked, in order
_FAILED: dict[int, BaseException] = {}  # by thread: the first while a loop was compiled for a compiled caller
_TAKEN: list[type[BaseException]] = []  # one for each unresolved call that is known
_COMPILING = threading.RLock()


def jit(function: Function) -> LazyFunction:
    """Compile on use; division by zero gives infinity or NaN, as on the chip."""
    return LazyFunction(function, _inlined)


def inline(function: Function) -> LazyFunction:
    """As `jit`, and always inlined: for what happens to one element, so that the loop around it vectorises."""
    return LazyFunction(function, functools.partial(_inlined, forceinline=True))


def _inlined(function: Function, **options: Any) -> Any:
    from numba import njit

    from trnlab.loops.inlining import Inlined

    return njit(error_model="numpy", pipeline_class=Inlined, **options)(function)


def exported(signature: Signature) -> Callable[[Function], Exported]:
    """Decorator: compile the function by itself, for compiled callers. Only numbers pass; addresses are int64."""

    def register(function: Function) -> Exported:
        _EXPORTS.append(Exported(_PREFIX + function.__name__, signature, function))
        return _EXPORTS[-1]

    return register


def link() -> None:
    """Have symbols for whatever was exported. A loop itself is loaded or compiled when it is first called."""
    from trnlab.sim.functional.binding import Stubs

    with _COMPILING:
        first = sum(len(stubs) for stubs in _STUBS)
        if new := _EXPORTS[first:]:
            _STUBS.append(Stubs(new, _resolve))


def check_linked() -> None:
    """Raise what kept a loop from being compiled when this thread's compiled code called it; its results are wrong.

    To be called after compiled code that calls exported loops. An interrupt may come before `_resolve` can take it,
    in the main thread, which is the only one that interrupts come to: it is raised anew.
    """
    error = _FAILED.pop(threading.get_ident(), None)
    if error is None and threading.current_thread() is threading.main_thread():
        lost = sum(stubs.unresolved() for stubs in _STUBS) - len(_TAKEN)
        _TAKEN.extend([KeyboardInterrupt] * lost)
        error = KeyboardInterrupt() if lost > 0 else None
    if error is not None:
        raise error


def from_python(external: Exported) -> Function:
    """An exported loop as a Python function of integers and floats."""
    if (made := prebuilt.exported(external.symbol, external.signature)) is not None:
        return made[1]
    link()

    def call(*args: Any) -> Any:
        result = _compiled(external).ctypes(*args)
        check_linked()
        return result

    return call


def _resolve(export: Exported) -> int:
    """The loop's address, or 0. Called by compiled code, which no exception passes through."""
    try:
        if (made := prebuilt.exported(export.symbol, export.signature)) is not None:
            return made[0]
        return int(_compiled(export).address)
    except BaseException as error:
        _TAKEN.append(type(error))
        _FAILED.setdefault(threading.get_ident(), error)
        return 0


def _compiled(export: Exported) -> Any:
    """The loop, compiled or from the cache on disk."""
    from numba import cfunc

    from trnlab.loops import compile_progress
    from trnlab.sim.functional import loop_cache

    loop_cache.install()
    compile_progress.listen()
    with _COMPILING:
        if export.compiled is None:
            compile_one = cfunc(export.signature.numba(), cache=True, error_model="numpy")
            export.compiled = compile_one(versioned(export.function))
    return export.compiled


def entry(function: Function) -> CompiledLoop:
    """Compile a function that Python calls: cached, without the interpreter lock."""
    return CompiledLoop(function, _entry)


def _entry(function: Function) -> Any:
    from numba import njit

    from trnlab.sim.functional import loop_cache

    loop_cache.install()
    link()
    return njit(cache=True, nogil=True, error_model="numpy")(versioned(function))


def versioned(function: Function) -> Function:
    """The function with one more closure variable, a digest of the source that it is made of.

    Numba's cache looks at the file of the function itself and at its closure; through this it sees every file.
    """
    assert isinstance(function, FunctionType)
    assert function.__closure__ is None
    code = function.__code__.replace(co_freevars=(VERSIONED,))
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, (CellType(_digest()),))
    copy.__module__, copy.__qualname__, copy.__doc__ = function.__module__, function.__qualname__, function.__doc__
    return copy


@functools.cache
def _digest() -> str:
    """Digest of this package's files, and of those whose numbers are compiled into the loops."""
    sources = source_digest("sim/functional", *_TABLES)
    return hashlib.sha256(f"{sources} {LANES} {REGISTERS}".encode()).hexdigest()
