# SPDX-License-Identifier: Apache-2.0
"""Entries of a compile cache that somebody made by hand, with digests that fit.

Numbers of a program and of its arrays are replaced by such as leave buffers, tables and memories. Whatever a run
takes it executes and times in a child: a signal, a traceback or a minute is a failure. Without a key a program that
keeps all rules and computes something else is taken, as docs/trust.md says; with a key none is.
"""

from __future__ import annotations

import copy
import os
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tools.attack import Outcome
from trnlab import chips
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph
from trnlab.numerics.dtypes import float32
from trnlab.runtime import device
from trnlab.runtime.cache import serialize
from trnlab.runtime.cache.codec import Encoder
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.cache.fingerprint import fingerprint
from trnlab.runtime.session import Session
from trnlab.storage.keys import VARIABLE

NUMBERS = (-1, 0, 1, 2, 63, 64, 127, 128, 4096, 1 << 15, 1 << 20, (1 << 31) - 1, 1 << 40, -(1 << 40), (1 << 62) + 1)
OTHERS: tuple[Any, ...] = (None, True, "", "HBM", [], {"list": []}, {"float": "nan"}, 1.5)
SECONDS = 60


RESULT = float(np.sum(64 + np.arange(48)))  # each element of the output for ones and twos


def graph() -> Graph:
    """Two products, one of which stays in SBUF for the other, the sum with a constant, and a scale."""
    b = GraphBuilder("attacked")
    x, w = b.input("x", (64, 32), float32), b.input("w", (32, 48), float32)
    y = b.add(b.dot_general(x, w, ((1,), (0,))), b.constant(np.arange(48, dtype=np.float32).reshape(1, 48)))
    b.output(b.multiply(b.dot_general(y, w, ((1,), (1,))), 0.5), "y")
    return b.build()


def changed(program: Any, pick: random.Random) -> tuple[Any, list[Any]]:
    """The tree and the arrays of a program, one to three numbers of which are others."""
    encoder = Encoder()
    tree = copy.deepcopy(encoder.encode(program))
    arrays = [array.copy() for array in encoder.arrays]
    for _ in range(pick.randint(1, 3)):
        whole = [array for array in arrays if array.size]
        if pick.random() < 0.5 and whole:
            array = pick.choice(whole)
            info = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
            value = pick.choice(NUMBERS)
            value = value if info is None else min(max(value, int(info.min)), int(info.max))
            array.reshape(-1)[pick.randrange(array.size)] = value
        else:
            _change(tree, pick)
    return tree, arrays


def _change(tree: Any, pick: random.Random) -> None:
    """Another value at a place of a tree, which is reached by as many random steps as there are."""
    here, place = tree, None
    holder: Any = None
    while isinstance(here, list | dict) and here:
        holder, place = here, pick.choice([*here] if isinstance(here, dict) else range(len(here)))
        here = holder[place]
    if holder is not None:
        holder[place] = pick.choice(NUMBERS if type(here) is int and pick.random() < 0.8 else (*NUMBERS, *OTHERS))


class Bench:
    """A cache with one entry, whose program is changed again and again."""

    def __init__(self, folder: Path) -> None:
        self.session = Session(chips.target("trn1.2xlarge"), "fp32", cache=Cache(folder, lambda line: None))
        self.graph = graph()
        self.options = device.options_of(self.graph, self.session)
        self.wanted = fingerprint(self.graph, self.session.chip, self.options)
        device.compile_graph(self.graph, self.session)
        content = self.cache.content(self.wanted.key)
        assert content is not None
        self.content = content
        self.sound = serialize.loads(content, "sound")
        self.inputs = [np.ones((64, 32), np.float32), np.full((32, 48), 2, np.float32)]
        self.expected = self._run()

    @property
    def cache(self) -> Cache:
        """Its cache."""
        assert self.session.cache is not None
        return self.session.cache

    def _run(self) -> bytes:
        self.session.executables.clear()
        found = device.compile_graph(self.graph, self.session)
        (y,) = device.Loaded(found, self.session).run(self.inputs)
        assert found.timeline.total >= 0
        return y.tobytes()

    def poisoned(self, pick: random.Random) -> bytes:
        """A file of a changed program, with its digests."""
        tree, arrays = changed(self.sound.program, pick)
        return b"".join(serialize.dump_tree(tree, arrays, self.sound.metadata, self.sound.graph))

    def taken(self, content: bytes) -> bool:
        """Whether a run would use it."""
        self.cache.store.write(f"v1/{self.wanted.key}.trnx", content)
        identity = device._identity(self.graph, self.wanted, self.session)
        return self.cache.get(self.wanted.key, self.session.chip, identity) is not None

    def outcome(self) -> str:
        """What a run with the entry does, in a child: "as it should", "another result", or what is wrong."""
        child = os.fork()
        if child == 0:
            status = 2
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                signal.alarm(SECONDS)
                status = 0 if self._run() == self.expected else 1
            finally:
                os._exit(status)
        _, told = os.waitpid(child, 0)
        if os.WIFSIGNALED(told):
            return f"signal {os.WTERMSIG(told)}"
        return ("as it should", "another result", "an exception")[min(os.WEXITSTATUS(told), 2)]


def without_a_key(inputs: int, seed: int) -> Outcome:
    """No entry leaves its memory, hangs, or ends a run with a traceback."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for number in range(inputs):
            try:
                content = bench.poisoned(random.Random(f"{seed} {number}"))
            except (TypeError, ValueError, OverflowError):
                continue
            if not bench.taken(content):
                outcome.counts["refused"] += 1
                continue
            found = bench.outcome()
            outcome.counts[f"taken: {found}"] += 1
            if found not in ("as it should", "another result"):
                outcome.failures.append(f"input {number} of seed {seed}: {found}")
    return outcome


def with_a_key(inputs: int, seed: int) -> Outcome:
    """No entry is used that who has no key made, or that was moved to another name."""
    outcome, before = Outcome(), os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "key")
        key.write_text("k" * 64)
        key.chmod(0o600)
        os.environ[VARIABLE] = str(key)
        try:
            bench = Bench(Path(folder, "cache"))
            whole = bench.cache.store.read(f"v1/{bench.wanted.key}.trnx")
            if not bench.taken(whole):
                outcome.failures.append("a sealed entry is refused")
            for number in range(inputs):
                pick = random.Random(f"{seed} {number}")
                try:
                    content = bench.poisoned(pick)
                except (TypeError, ValueError, OverflowError):
                    continue
                if content == whole[:-32]:  # a number was replaced by itself
                    continue
                seal = pick.choice([b"", whole[-32:], pick.randbytes(32), bytes(32)])
                taken = bench.taken(content + seal) or bench.taken(_flipped(whole, pick))
                outcome.counts["taken" if taken else "refused"] += 1
                if taken:
                    outcome.failures.append(f"input {number} of seed {seed} is taken")
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
    return outcome


def _flipped(content: bytes, pick: random.Random) -> bytes:
    found, at = bytearray(content), pick.randrange(8 * len(content))
    found[at // 8] ^= 1 << at % 8
    return bytes(found)
