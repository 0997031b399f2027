# SPDX-License-Identifier: Apache-2.0
"""Drawn programs: which steps there are, what each takes, and the smallest part of one that still goes wrong.

A step draws from a generator of its own number, so that leaving out others changes as little of it as can be.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from tools.recorded import heavy, steps  # noqa: F401  heavy registers more steps
from tools.recorded.judge import difference
from tools.recorded.world import NothingError, Said, World
from trnlab import chips
from trnlab.frontends.common import engine
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.device.host_ops import fallback_counts, reset_fallback_counts
from trnlab.runtime import session

Step = Callable[[World, Random], None]


@dataclass(frozen=True)
class Program:
    """Numbers of steps and what each does."""

    number: int
    steps: tuple[tuple[int, Step], ...]

    def run(self, device: str) -> list[Said]:
        """What it says on a device."""
        torch.manual_seed(self.number)
        world, draw = World(device), Random(self.number)
        world.step = "begin"
        world.put(*(world.new(draw) for _ in range(6)))
        for number, step in self.steps:
            world.step = f"{number} {step.__name__}"
            _done(step, world, Random(self.number * 1000 + number))
        world.step = "end"
        for tensor in world.pool:
            world.say([tensor, list(tensor.shape)])
        world.say(torch.rand(1))
        return world.said


def _done(step: Step, world: World, draw: Random) -> None:
    try:
        step(world, draw)
    except NothingError:
        pass
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        world.say(f"raises {type(error).__name__}", note=str(error).splitlines()[0])


def drawn(number: int, length: int) -> Program:
    """The program of that number."""
    draw = Random(number)
    known = steps.STEPS
    return Program(number, tuple(enumerate(draw.choices([s for s, _ in known], [w for _, w in known], k=length))))


def compared(case: Any) -> str:
    """What a program says otherwise on the device than on the CPU, "" for nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = case.run("cpu")
        try:
            got = case.run("neuron")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return difference(got, wanted)


def shrunk(case: Any) -> str:
    """A program with as few steps as still go wrong, and what is wrong then."""
    wrong, left = compared(case), list(case.steps)
    for at in reversed(range(len(left))):
        fewer = Program(case.number, tuple(left[:at] + left[at + 1 :])) if isinstance(case, Program) else None
        if fewer is not None and (found := compared(fewer)):
            left, wrong = list(fewer.steps), found
    return f"{', '.join(f'{n} {step.__name__}' for n, step in left) or case}: {wrong}"


@contextmanager
def recording_on(chip: str, interprets: bool) -> Iterator[None]:
    """Within the block operators are recorded, and computed in fp32 on this chip or by the interpreter."""
    logging.disable(logging.ERROR)
    on = engine.InterpreterEngine() if interprets else engine.DeviceEngine()
    here = session.Session(chips.target(chip), "fp32")
    with session.activate(here), recording.using("steps"), engine.use(on):
        reset_fallback_counts()
        yield
    logging.disable(logging.NOTSET)


def figures() -> str:
    """How much of it the host computed."""
    counts = fallback_counts() | fallback_counts("setup")
    most = sorted(counts.items(), key=lambda item: -item[1])[:8]
    return f"the host computed {sum(counts.values())}: " + ", ".join(f"{n} {c}" for n, c in most)
