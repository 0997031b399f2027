# SPDX-License-Identifier: Apache-2.0
"""Flips bits of checkpoints and cuts their files short: nothing of it may stay unnoticed, and no model be another.

    python -m tools.storage.flips [--inputs 10000] [--seed 0] [--place FOLDER_OR_URL]

A checkpoint of two ranks has one bit of a file flipped, or the file cut, drawn over the bytes of all files, small
ones as often as large. `trnlab checkpoint verify` has to notice each; `to-hf`, of the checkpoint and of its step as a
folder of DCP, `reshard`, `diff` and a run that goes on either refuse with a code and leave nothing, or give what they
give of the sound one. Status 1 where one does not.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trnlab.cli import commands
from trnlab.cli import main as cli
from trnlab.errors import RunError
from trnlab.frontends.torch.saving import state_files
from trnlab.frontends.torch.saving import training_state as states
from trnlab.storage import Store, open_store
from trnlab.storage.checkpoints import Checkpoints, name_of

STEP = 7
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where files cost no disk
READERS = ("verify", "to-hf", "to-hf of the folder", "reshard", "diff", "resume")


def written(place: str) -> dict[str, bytes]:
    """Write a checkpoint of two ranks with a spread matrix and an optimizer's values; its files by name."""
    store = open_store(place)
    whole = torch.arange(64.0).reshape(8, 8)
    for rank in (1, 0):
        part = states.TensorShard(whole[rank * 4 : rank * 4 + 4].clone(), (8, 8), (rank * 4, 0))
        module = states.ModuleState(w=part, v=torch.tensor([1.5, 0.0]), u=torch.tensor([2.5, 0.0]))
        module.again = {}
        kept = Checkpoints(store, rank, 2, index=state_files.index)
        kept.save(STEP, *state_files.packed({"model": module, "step": STEP}))
    names = [item.name for item in store.items()] + [f"{name_of(STEP)}/.metadata"]
    return {name: store.read(name) for name in sorted({*names})}


def damaged(content: bytes, pick: random.Random) -> bytes:
    """One flipped bit, or a shorter file."""
    if pick.random() < 0.8:
        at = pick.randrange(8 * len(content))
        changed = bytearray(content)
        changed[at // 8] ^= 1 << at % 8
        return bytes(changed)
    return content[: pick.randrange(len(content))]


class Bench:
    """A checkpoint that is damaged and mended, and what reads it."""

    def __init__(self, place: str, scratch: Path) -> None:
        self.place, self.scratch, self.store = place, scratch, open_store(place)
        self.files = written(place)
        self.sound = {name: self.read(name) for name in READERS}
        assert self.sound["verify"][0] == 0, self.sound["verify"]
        assert all(self.sound[name][0] == 0 for name in READERS), self.sound

    def read(self, reader: str) -> tuple[int, Any]:
        """The status of a reader and what it made; a run that goes on has status 2 where it refuses."""
        if reader == "resume":
            try:
                found = [Checkpoints(self.store, r, 1 + (r > 0)).load_newest(other_ranks=r == 0) for r in (0, 1)]
            except RunError as error:
                return 2, error.code
            return 0, found
        folder = self.place.rstrip("/") + f"/{name_of(STEP)}" if reader.endswith("folder") else self.place
        out = str(self.scratch / "out")
        command = {
            "verify": ["verify", folder],
            "to-hf": ["to-hf", folder, out],
            "to-hf of the folder": ["to-hf", folder, out],
            "reshard": ["reshard", folder, out, "--to", "dp1,tp1,pp1"],
            "diff": ["diff", folder, "--steps", f"{STEP},{STEP}"],
        }[reader]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            status = cli.main(["checkpoint", *command])
        made = left(open_store(out))
        if status and "Traceback" in said.getvalue():
            return -1, said.getvalue()
        return status, made

    def wrong(self, name: str, content: bytes, readers: tuple[str, ...]) -> list[str]:
        """Which readers do wrong by a damaged file."""
        self.store.write(name, content)
        found = []
        for reader in readers:
            status, made = self.read(reader)
            if reader == "verify":
                found += [reader] if status not in (1, 2) else []
            elif status == 0:
                found += [reader] if made != self.sound[reader][1] else []
            elif status < 0 or (made and reader != "resume"):
                found.append(reader)
        self.store.write(name, self.files[name])
        return found


def left(store: Store) -> dict[str, bytes]:
    """What a conversion left, by name, which is taken away."""
    found = {item.name: store.read(item.name) for item in store.items()}
    store.delete(*found, f"{name_of(STEP)}/.metadata")
    return found


def flips(inputs: int, seed: int, place: str, every: Callable[[int], tuple[str, ...]]) -> dict[str, Counter[str]]:
    """Readers that did wrong, by file. every: which readers an input gets."""
    found: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
        bench = Bench(place, Path(scratch))
        names = [name for name, content in bench.files.items() if content]
        for number in range(inputs):
            pick = random.Random(f"{seed} {number}")
            name = pick.choice(names)
            for reader in bench.wrong(name, damaged(bench.files[name], pick), every(number)):
                found.setdefault(reader, Counter())[name] += 1
    return found


def main() -> int:
    """The command; returns 1 where damage stayed unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", help="a folder or URL; default: one that goes away")
    args = parser.parse_args()
    commands.parser = functools.cache(commands.parser)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        found = flips(args.inputs, args.seed, args.place or folder, lambda number: READERS)
    for reader, names in found.items():
        print(f"{reader}: {dict(names)}")
    print(f"{args.inputs} inputs of seed {args.seed}, {sum(c.total() for c in found.values())} unnoticed or wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
