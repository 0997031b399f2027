# SPDX-License-Identifier: Apache-2.0
"""How the simulator's loops are compiled: each exported loop once, under a symbol of its own, and cached on disk.

Numba compiles a function together with everything it calls, again at each level of calls. A loop marked `exported`
is instead compiled alone, when it is first called, and called through its symbol, as from a C library, which keeps
the first start short. `jit` is for the small functions that should be inlined into the loops.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

from numba import cfunc, njit, types
from numba.core.typing import Signature

from trnlab.isa import activations, alu
from trnlab.numerics import dtypes, mx
from trnlab.program import access, routine
from trnlab.sim.functional import keeping
from trnlab.sim.functional.binding import Loop, Stubs
from trnlab.sim.functional.inlining import Inlined

Function = Callable[..., Any]
_PREFIX = "trnlab_"


@dataclass
class _Export(Loop):
    function: Function
    compiled: Any = None


_EXPORTS: list[_Export] = []
_STUBS: list[Stubs[_Export]] = []  # of all that are linked, in order
_FAILED: dict[int, BaseException] = {}  # by thread: the first while a loop was compiled for a compiled caller
_TAKEN: list[type[BaseException]] = []  # one for each unresolved call that is known
_COMPILING = threading.RLock()


def jit(function: Function) -> Function:
    """Compile on use; division by zero gives infinity or NaN, as on the chip."""
    compiled: Function = njit(error_model="numpy", pipeline_class=Inlined)(function)
    return compiled


def inline(function: Function) -> Function:
    """As `jit`, and always inlined: for what happens to one element, so that the loop around it vectorises."""
    compiled: Function = njit(error_model="numpy", forceinline=True, pipeline_class=Inlined)(function)
    return compiled


def exported(signature: Signature) -> Callable[[Function], Any]:
    """Decorator: compile the function by itself, for compiled callers. Only numbers pass; addresses are int64."""

    def register(function: Function) -> Any:
        symbol = _PREFIX + function.__name__
        _EXPORTS.append(_Export(symbol, signature, function))
        return types.ExternalFunction(symbol, signature)

    return register


def link() -> None:
    """Have symbols for whatever was exported. A loop itself is loaded or compiled when it is first called."""
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


def from_python(external: Any) -> Function:
    """An exported loop as a Python function of integers and floats; it must be linked."""
    export = next(export for export in _EXPORTS if export.symbol == external.symbol)

    def call(*args: Any) -> Any:
        result = _compiled(export).ctypes(*args)
        check_linked()
        return result

    return call


def _resolve(export: _Export) -> int:
    """The loop's address, or 0. Called by compiled code, which no exception passes through."""
    try:
        return int(_compiled(export).address)
    except BaseException as error:
        _TAKEN.append(type(error))
        _FAILED.setdefault(threading.get_ident(), error)
        return 0


def _compiled(export: _Export) -> Any:
    """The loop, compiled or from the cache on disk."""
    with _COMPILING:
        if export.compiled is None:
            compile_one = cfunc(export.signature, cache=True, error_model="numpy")
            export.compiled = compile_one(versioned(export.function))
    return export.compiled


def entry(function: Function) -> Function:
    """Compile a function that Python calls: cached, without the interpreter lock."""
    compiled: Function = njit(cache=True, nogil=True, error_model="numpy")(versioned(function))
    return compiled


def versioned(function: Function) -> Function:
    """The function with one more closure variable, a digest of the source that it is made of.

    Numba's cache looks at the file of the function itself and at its closure; through this it sees every file.
    """
    assert isinstance(function, FunctionType)
    assert function.__closure__ is None
    code = function.__code__.replace(co_freevars=(keeping.VERSIONED,))
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, (CellType(_DIGEST),))
    copy.__module__, copy.__qualname__, copy.__doc__ = function.__module__, function.__qualname__, function.__doc__
    return copy


def _digest() -> str:
    """Of this package's files, and of those whose numbers are compiled into the loops."""
    digest = hashlib.sha256()
    tables = [Path(str(module.__file__)) for module in (dtypes, mx, alu, activations, access, routine)]
    for path in [*sorted(Path(__file__).parent.glob("*.py")), *tables]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


_DIGEST = _digest()
keeping.install()
