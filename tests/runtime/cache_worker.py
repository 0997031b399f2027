# SPDX-License-Identifier: Apache-2.0
"""A process that uses the cache hard, for `test_cache`: `python cache_worker.py ROOT ROUNDS [KEYS]`.

Exits with 1 when it ever reads an executable that is not the one of its key.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from runtime_samples import program

from trnlab.runtime.cache.executables import Cache


def key_of(i: int) -> str:
    return f"{i:x}".rjust(64, "0")


def main(root: str, rounds: str, keys: str = "4") -> int:
    cache = Cache(Path(root))
    pick = random.Random(os.getpid())
    program("")  # the first one imports what makes programs, for longer than dozens of writes take
    print("ready", flush=True)
    for _ in range(int(rounds)):
        i = pick.randrange(int(keys))
        found = cache.get(key_of(i))
        if found is not None and found.program.name != f"step{i}":
            return 1
        if found is None or pick.random() < 0.5:
            cache.put(key_of(i), program(f"step{i}"), {"name": f"step{i}", "target": "trn1", "parts": {}}, "graph")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
