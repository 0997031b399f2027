# SPDX-License-Identifier: Apache-2.0
"""One process of the fuzzer: inputs of one reader after the other, each made from the seed and its number alone."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tools.fuzz import readers, sound
from tools.fuzz.guard import BrokenError, Guard
from trnlab.errors import TrnlabError


@dataclass
class Outcome:
    """Of one reader: how many inputs were accepted and refused, and failures by where they arose, with one input of
    each."""

    accepted: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, tuple[int, int]] = field(default_factory=dict)  # number of the first input, how many

    def add(self, other: Outcome) -> None:
        """Put another's on top."""
        self.accepted += other.accepted
        self.codes += other.codes
        for where, (number, count) in other.failures.items():
            first, before = self.failures.get(where, (number, 0))
            self.failures[where] = (min(first, number), before + count)


_MADE: list[tuple[Guard, Path]] = []


def prepare(folder: str | None = None) -> tuple[Guard, Path]:
    """This process's folder and guard."""
    if not _MADE:
        place = Path(tempfile.mkdtemp(prefix="fuzz-", dir=folder))
        sound.place(place)
        _MADE.append((Guard(str(place)), place))
    return _MADE[-1]


def clean() -> None:
    """Remove what was written."""
    for _, place in _MADE:
        shutil.rmtree(place, ignore_errors=True)


def made(reader: readers.Reader, seed: int, number: int) -> bytes:
    """Input `number`: a sound file, damaged."""
    pick = random.Random(f"{seed} {reader.name} {number}")
    return reader.damage(pick.choice(reader.whole()), pick)


def inputs(name: str, seed: int, numbers: range, folder: str | None = None) -> Outcome:
    """Let the reader have these inputs. A refusal has a code; what else is raised is a failure."""
    guard, place = prepare(folder)
    reader = next(r for r in readers.all_readers() if r.name == name)
    outcome, own = Outcome(), place / name.replace(" ", "_")
    own.mkdir(exist_ok=True)
    _sound_is_read(reader, own)
    guard.check()
    for number in numbers:
        data = made(reader, seed, number)
        try:
            with guard.watching(reader.classes):
                reader.read(data, own)
        except TrnlabError as error:
            outcome.codes[error.code] += 1
        except Exception as error:
            where = place_of(error)
            first, count = outcome.failures.get(where, (number, 0))
            outcome.failures[where] = (first, count + 1)
        else:
            outcome.accepted += 1
    return outcome


def _sound_is_read(reader: readers.Reader, folder: Path) -> None:
    """What it is all made from is accepted; imports and compiled loops are there afterwards."""
    for data in reader.whole():
        reader.read(data, folder)


def place_of(error: BaseException) -> str:
    """Kind of an exception and the innermost line of trnlab that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/trnlab/" in f.filename] or frames
    last = ours[-1]
    name = last.filename.rpartition("/trnlab/")[2]
    said = str(error) if isinstance(error, BrokenError) else type(error).__name__
    return f"{said} at {name}:{last.lineno} in {last.name}"


def shown(name: str, seed: int, number: int) -> None:
    """Write one input to standard output, and the traceback that it leads to, to standard error."""
    guard, place = prepare()
    reader = next(r for r in readers.all_readers() if r.name == name)
    data = made(reader, seed, number)
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
    with guard.watching(reader.classes):
        reader.read(data, place)
