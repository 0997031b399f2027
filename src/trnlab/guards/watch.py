# SPDX-License-Identifier: Apache-2.0
"""Which Python functions run within a block: their names go to a `StateSnapshot` before each runs for the first
time."""

from __future__ import annotations

import gc
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from trnlab.guards.state_snapshot import StateSnapshot
from trnlab.guards.unrepeatable import unrepeatable

_OF_IMPORTS = frozenset({"find_spec", "create_module", "exec_module"})  # where a module is found decides no number


class FunctionWatch:
    """Context manager. Uses the interpreter's profiling hook, and gives it back as it was.

    Garbage is not collected meanwhile: what libraries do whenever that happens (Hypothesis counts the time) would
    look like a part of the code that is watched.
    """

    def __init__(self, snapshot: StateSnapshot) -> None:
        self.snapshot = snapshot
        self.noted: list[str] = []  # what the code asked that another run may answer otherwise
        self._seen: dict[int, CodeType] = {}
        self._previous: Any = None
        self._collects = False

    def __enter__(self) -> FunctionWatch:
        self._collects = gc.isenabled()
        gc.disable()
        self._previous = sys.getprofile()
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is None or callable(self._previous):
            sys.setprofile(self._previous)
        else:  # a profiler in C, whose hook Python shows as the profiler itself
            self._previous.enable()
        self.snapshot.closures.forget()
        if self._collects:
            gc.enable()

    def _event(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function is not None:
            asked = unrepeatable(self.snapshot, function, frame)
            if asked is not None:
                self.noted.append(asked)
        if event != "call":
            return
        code = frame.f_code  # each look at one is an audit event, which costs a process that listens to those
        if id(code) in self._seen:
            return
        self._seen[id(code)] = code
        file, framework = code.co_filename, self.snapshot.framework
        if not framework.library(file):
            if code.co_name in _OF_IMPORTS and _is_import(frame.f_back):
                return
            self.snapshot.mention(code, frame.f_globals)
        elif framework.names_only(file):
            self.snapshot.mention_names(code)


def _is_import(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")


@contextmanager
def unwatched() -> Iterator[None]:
    """Within the block nothing is watched: for calls into a library that reach no code of the user's."""
    hook = sys.getprofile()
    if not isinstance(getattr(hook, "__self__", None), FunctionWatch):
        yield
        return
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(hook)


def random_states() -> dict[str, Any]:
    """The states of Python's and NumPy's own generators of random numbers, which a program cannot draw from."""
    states: dict[str, Any] = {"random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy.random"] = pickle.dumps(numpy.random.get_state())
    return states
