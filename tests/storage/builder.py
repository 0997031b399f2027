# SPDX-License-Identifier: Apache-2.0
"""A host of a job that starts on a shared cache: `python builder.py URL PROGRAMS` says which programs it built."""

from __future__ import annotations

import sys
import time

from tests.runtime.runtime_samples import program
from trnlab.runtime.cache.executables import Cache


def main(url: str, programs: str) -> None:
    cache = Cache(url)
    for i in range(int(programs)):
        key = f"{i:x}".rjust(64, "0")
        with cache.building(key):
            if cache.get(key) is None:
                print(f"built {i}", flush=True)
                time.sleep(0.2)
                assert cache.put(key, program(f"step{i}"), {"name": "step", "target": "trn1", "parts": {}}, "graph")
        assert cache.get(key) is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
