# SPDX-License-Identifier: Apache-2.0
"""Which types loops are called with: runs tests or a script, and adds what is new to the list of what is made.

    python -m tools.loops tests/sim tests/nki/test_kernel.py     # as for pytest
    python -m tools.loops examples/train_gpt.py                  # a script

Whatever is not in the list is left to Numba, which compiles it at its first use on each machine.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from trnlab import loops
from trnlab.loops import kinds
from trnlab.loops.build import SIGNATURES, signatures


def learn(found: set[str]) -> None:
    """Have all loops add what they are called with."""
    find = loops.CompiledLoop._find

    def noted(self: loops.CompiledLoop, args: tuple[Any, ...]) -> Any:
        names = [kinds.name_of(arg) for arg in args]
        if None in names:
            print(f"{self.name} is left to Numba: {[type(a) for a, n in zip(args, names) if n is None]}")
        elif self.name.startswith("trnlab."):
            found.add(f"{self.name}({', '.join(map(str, names))})")
        return find(self, args)

    loops.CompiledLoop._find = noted  # type: ignore[method-assign]


def main(arguments: list[str]) -> None:
    """Run and add."""
    found: set[str] = set()
    learn(found)
    try:
        if Path(arguments[0]).suffix == ".py" and not Path(arguments[0]).name.startswith("test_"):
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            import pytest

            pytest.main(["-n0", "-p", "no:cacheprovider", *arguments])
    finally:
        new = found - set(signatures())
        SIGNATURES.write_text("\n".join(sorted({*signatures(), *new})) + "\n")
        print(f"{len(found)} found, {len(new)} new", *sorted(new), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
