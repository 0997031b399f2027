# SPDX-License-Identifier: Apache-2.0
"""Attack what docs/trust.md promises: poisoned caches, hostile folders and names, kills, flipped bits, networks.

    python -m tools.attack [--share 1] [--seed 0] [--only NAME ...]

--share: of the inputs that each attack has. Status 1 where something happened that should not. The same seed gives
the same inputs; kills, interrupts and connections hit where they hit. `make attack` does all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from tools.attack import Outcome


@dataclass(frozen=True)
class Attack:
    """One kind of attack. inputs: how many a whole run has."""

    name: str
    inputs: int
    run: Callable[[int, int], Outcome]


def _of(module: str, name: str) -> Callable[[int, int], Outcome]:
    """Imports what an attack needs when it runs."""
    return lambda inputs, seed: getattr(import_module(f"tools.attack.{module}"), name)(inputs, seed)


def _kills(inputs: int, seed: int) -> Outcome:
    from tools.storage import kills

    with tempfile.TemporaryDirectory() as folder:
        found = kills.rounds(folder, inputs, seed)
    return Outcome(found.counts, found.failures)


def _flips(inputs: int, seed: int) -> Outcome:
    from tools.storage import flips

    readers = flips.READERS
    with tempfile.TemporaryDirectory(dir=flips.MEMORY) as folder:
        found = flips.flips(inputs, seed, folder, lambda number: readers if number % 4 == 0 else ("verify",))
    outcome = Outcome(failures=[f"{reader}: {dict(files)}" for reader, files in found.items()])
    outcome.counts["flipped bits and short files"] = inputs
    return outcome


def _files(inputs: int, seed: int) -> Outcome:
    from tools.fuzz import readers
    from tools.fuzz.__main__ import fuzz

    outcome = Outcome()
    for name, found in fuzz(inputs, seed, 1, readers.all_readers()).items():
        outcome.counts["accepted"] += found.accepted
        outcome.counts["refused"] += sum(found.codes.values())
        outcome.failures += [f"{name}: {failure}" for failure in found.failures]
    return outcome


ATTACKS = (
    Attack("poisoned cache", 6000, _of("poison", "without_a_key")),
    Attack("poisoned cache, with a key", 2000, _of("poison", "with_a_key")),
    Attack("folder of a cache", 88, _of("places", "caches")),
    Attack("folder of live records", 1000, _of("places", "records")),
    Attack("folder of results", 500, _of("places", "results")),
    Attack("folder of checkpoints", 500, _of("places", "checkpoints")),
    Attack("names", 3000, _of("names", "names")),
    Attack("numbers", 1, _of("words", "numbers")),
    Attack("interrupts", 100, _of("words", "interrupts")),
    Attack("connections", 100, _of("ports", "listening")),
    Attack("pages", 400, _of("views", "pages")),
    Attack("network with faults", 60, _of("network", "proxies")),
    Attack("kills", 200, _kills),
    Attack("checkpoints", 10_000, _flips),
    Attack("damaged files", 20_000, _files),
)


def attack(share: float, seed: int, only: list[str] | None = None) -> dict[str, Outcome]:
    """The outcome of each attack, or of those that are named; of so many of its inputs, one at least."""
    chosen = [each for each in ATTACKS if not only or each.name in only]
    found = {}
    for each in chosen:
        started = time.monotonic()
        found[each.name] = outcome = each.run(max(1, round(each.inputs * share)), seed)
        took = f"{time.monotonic() - started:.0f} s"
        print(f"{each.name:28}{len(outcome.failures)} failures, {took}: {outcome.words()}", flush=True)
        for failure in outcome.failures[:20]:
            print(f"    {failure}", flush=True)
    return found


def main() -> int:
    """The command; returns 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[each.name for each in ATTACKS])
    args = parser.parse_args()
    found = attack(args.share, args.seed, args.only)
    return 1 if any(outcome.failures for outcome in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
