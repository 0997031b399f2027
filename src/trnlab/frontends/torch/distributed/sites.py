# SPDX-License-Identifier: Apache-2.0
"""Which line of the script asks for a collective, and what it is for."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from types import FrameType

import torch

import trnlab
from trnlab.errors import Location

_LIBRARIES = (
    *(os.path.dirname(path) + os.sep for path in (torch.__file__, trnlab.__file__)),
    sysconfig.get_paths()["stdlib"] + os.sep,
    "<frozen",
)
_PURPOSES = (  # the part of PyTorch that asks, and for what; the first that fits from the innermost frame on
    ("torch/distributed/checkpoint", "checkpoint"),
    ("torch/distributed/pipelining", "pipeline"),
    ("torch/distributed/fsdp", "gradient"),
    ("torch/distributed/tensor/experimental", "sequence"),
    ("torch/distributed/tensor", "tensor"),
    ("torch/distributed/optim", "parameter"),
    ("torch/nn/parallel/distributed", "gradient"),
    ("torch/distributed/algorithms", "gradient"),
    ("horovod", "gradient"),
)


def site() -> Location:
    """The innermost line that belongs neither to PyTorch nor to us nor to Python itself.

    On a thread of autograd that is where the main thread is: in the script's `backward()`.
    """
    for frame in _frames():
        name = frame.f_code.co_filename
        if not name.startswith(_LIBRARIES):
            line = frame.f_lineno
            return Location(name, line, frame.f_code.co_name, linecache.getline(name, line).strip())
    return Location("?", 0)


def purpose(operation: str, said: str = "") -> str:
    """What a collective is for, one of `collectives.PURPOSES`: by who asks, and where the script itself does by what
    its group's mesh dimension says."""
    asked = _asked()
    if asked == "gradient" and operation in ("all_gather", "collective_broadcast"):
        return "parameter"
    if asked == "tensor" and operation in ("all_gather", "reduce_scatter"):
        return "sequence"
    return asked or said or ("expert" if operation == "all_to_all" else "other")


def _asked() -> str:
    """What the part of PyTorch that asks does; "" where the script asks."""
    found = False
    for frame in _frames(others=False):
        found = True
        name = frame.f_code.co_filename
        if not name.startswith(_LIBRARIES):
            break
        for part, purpose in _PURPOSES:
            if part in name:
                return purpose
    on_main = threading.current_thread() is threading.main_thread()
    return "" if found and on_main else "gradient"  # hooks of autograd run without a frame of Python's below them


def _frames(others: bool = True) -> Iterator[FrameType]:
    yield from _outwards(sys._getframe(2))
    if others and threading.current_thread() is not threading.main_thread():
        yield from _outwards(sys._current_frames().get(threading.main_thread().ident or 0))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def raised(error: BaseException) -> str:
    """What an exception is and the innermost line of the script that it came from."""
    place, head = "", error.__traceback__
    while head is not None:
        name = head.tb_frame.f_code.co_filename
        if not name.startswith(_LIBRARIES):
            place = f" at {name}:{head.tb_lineno} in {head.tb_frame.f_code.co_name}"
        head = head.tb_next
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first}{place}" if first else f"{type(error).__name__}{place}"
