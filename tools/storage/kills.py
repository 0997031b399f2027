# SPDX-License-Identifier: Apache-2.0
"""Kills compilers and writers of a cache at random moments, damages entries, and looks at what is left.

    python -m tools.storage.kills [--rounds 1000] [--seed 0] [--cache DIR_OR_URL]

In each round a process compiles small graphs into the cache until it is killed with SIGKILL after a random time; now
and then an entry is damaged: a bit flipped, its end cut off, another's content in its place. After that every key is
read, as a run does: a result that is not the program of its key, or an entry that is found damaged without having
been damaged here, is a failure; so is damage that nobody notices. At the end whoever asks next compiles at once:
nothing has to be cleaned up.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from trnlab import chips
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph
from trnlab.numerics.dtypes import float32
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.cache.fingerprint import fingerprint
from trnlab.runtime.device import Loaded, compile_graph, options_of
from trnlab.runtime.session import Session

TARGET, PROGRAMS = "trn1.2xlarge", 6


@dataclass
class Outcome:
    """What happened, by name, and what should not have."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def graph(i: int) -> Graph:
    """y = (i + 2) x, of (8, 4): a program of its own for each i."""
    b = GraphBuilder(f"scale{i}")
    x = b.input("x", (8, 4), float32)
    b.output(b.multiply(x, float(i + 2)), "y")
    return b.build()


def session(place: str, told: list[str] | None = None) -> Session:
    """A session on the cache; what the cache says is appended to `told`."""
    say = (lambda line: None) if told is None else told.append
    return Session(chips.target(TARGET), "fp32", cache=Cache(place, say))


def rounds(place: str, count: int, seed: int) -> Outcome:
    """Do `count` rounds on the cache at `place`. A worker lives for up to the time of six compilations."""
    pick, outcome = random.Random(seed), Outcome()
    longest_s = 6 * _usual_time(f"{place}-usual")
    options = session(place)
    keys = {i: fingerprint(graph(i), options.chip, options_of(graph(i), options)).key for i in range(PROGRAMS)}
    for number in range(count):
        _killed(place, pick.uniform(0, longest_s), pick.randrange(1 << 30), outcome)
        damaged = _damage(place, pick, outcome) if pick.random() < 0.3 else None
        for i, key in keys.items():
            _look(place, key, f"scale{i}", damaged == key, f"round {number}", outcome)
        if pick.random() < 0.1:
            Cache(place).clear()
    _finish(place, outcome)
    return outcome


def _usual_time(place: str) -> float:
    """Seconds that a session takes to compile and store a program at such a place; what is imported for it is then in
    this process."""
    compile_graph(graph(0), session(place))
    started = time.monotonic()
    compile_graph(graph(1), session(place))
    seconds = time.monotonic() - started
    Cache(place).clear()
    return seconds


def _killed(place: str, after_s: float, seed: int, outcome: Outcome) -> None:
    """A process at work on the cache for a while."""
    child = os.fork()
    if child == 0:
        try:
            _work(place, seed)
        finally:
            os._exit(1)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    outcome.counts["kills"] += 1
    if not os.WIFSIGNALED(status):
        outcome.failures.append("a worker ended by itself")


def _work(place: str, seed: int) -> None:
    pick = random.Random(seed)
    while True:
        now = session(place)
        assert now.cache is not None
        compile_graph(graph(pick.randrange(PROGRAMS)), now)
        if pick.random() < 0.3:
            now.cache.remove(pick.choice(now.cache.entries()).key)


def _damage(place: str, pick: random.Random, outcome: Outcome) -> str | None:
    """Damage an entry; returns its key, or None where there is none."""
    cache = Cache(place)
    entries = sorted(cache.entries(), key=lambda e: e.key)
    if not entries:
        return None
    key = pick.choice(entries).key
    content = bytearray(cache.content(key) or b"")
    kind = pick.choice(("flip", "cut", "swap"))
    if kind == "swap" and len(entries) > 1:
        content = bytearray(cache.content(pick.choice([e.key for e in entries if e.key != key])) or b"")
    elif kind == "cut":
        del content[pick.randrange(len(content)) :]
    else:
        content[pick.randrange(len(content))] ^= 1 << pick.randrange(8)
    cache.overwrite(key, bytes(content))
    outcome.counts[f"damaged: {kind}"] += 1
    return key


def _look(place: str, key: str, name: str, damaged: bool, where: str, outcome: Outcome) -> None:
    told: list[str] = []
    cache = Cache(place, told.append)
    found = cache.get(key)
    if found is not None and found.program.name != name:
        outcome.failures.append(f"{where}: {key[:12]} gave {found.program.name}, not {name}")
    if damaged and (found is not None or not told):
        outcome.failures.append(f"{where}: damage of {key[:12]} was not noticed")
    if told and not damaged:
        outcome.failures.append(f"{where}: {told[0]}")
    outcome.counts["whole" if found is not None else "noticed" if damaged else "absent"] += 1
    if damaged:
        cache.remove(key)


def _finish(place: str, outcome: Outcome) -> None:
    """Compile and run everything: nothing that was left behind is in the way."""
    started = time.monotonic()
    for i in range(PROGRAMS):
        told: list[str] = []
        now = session(place, told)
        x = np.ones((8, 4), np.float32)
        (y,) = Loaded(compile_graph(graph(i), now), now).run([x])
        if not (y == i + 2).all():
            outcome.failures.append(f"scale{i} computes something else")
        outcome.counts["leases taken over at the end"] += sum("died while" in line for line in told)
    if time.monotonic() - started > 25:
        outcome.failures.append("somebody who is gone was waited for")


def main() -> int:
    """The command; returns 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", metavar="DIR_OR_URL", help="default: a temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        outcome = rounds(args.cache or folder, args.rounds, args.seed)
    for name, count in sorted(outcome.counts.items()):
        print(f"{name:32}{count}")
    print(f"{len(outcome.failures)} failures in {args.rounds} rounds, {time.monotonic() - started:.0f} s")
    for failure in outcome.failures[:20]:
        print(f"  {failure}")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
