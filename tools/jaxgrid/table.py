# SPDX-License-Identifier: Apache-2.0
"""docs/jax_functions.md: what the chip makes of each function and format, from measured results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tools.jaxgrid.judge import CLOSE, EXACT, NOT_JAX, REFUSED, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "jax_functions.md"
COLUMNS = ("float32", "bfloat16", "float16", "int32", "uint32", "int16", "int8", "uint8", "bool", "key")
_HEAD = """# Functions of JAX

What a program of `trnlab.frontends.jax.jit` does with functions of JAX, measured: each on one small array of each
format, on the simulated chip (trn1, fp32), beside `jax.jit` on the CPU. `make jaxgrid` writes this page.

- `exact`: equal in every element (NaN where it is NaN; the two zeros are told apart).
- `close`: within 1e-4 in float32, 5e-3 in float16 and 3e-2 in bfloat16, of each number and of one. XLA's results are
  rounded, too, and sums in another order are both right. Where XLA rounds on its way (running sums in 16 bits), its
  result in float32 is as good a witness. XLA rounds otherwise on other processors: the farther of what was
  seen is said.
- a code such as TRN234: refused, with the line and a way out; see [errors](errors.md).
- `WRONG`, `CRASH`: there should be none.
- empty: JAX does not have it.

"""


def page(verdicts: Iterable[Verdict]) -> str:
    """The page as text; functions in the order of the grid."""
    cells: dict[str, dict[str, str]] = {}
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict.kind != NOT_JAX:
            counts[verdict.kind] += 1
            cells.setdefault(verdict.name, {})[verdict.dtype] = _cell(verdict)
    done = counts[EXACT] + counts[CLOSE]
    others = counts.total() - done - counts[REFUSED]
    said = f"Of {counts.total():,} pairs of function and format: {done:,} run, {counts[REFUSED]:,} refused, "
    said += f"{others:,} wrong."
    lines = [f"| function | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    lines += [
        f"| `{name}` | {' | '.join(row.get(column, '') for column in COLUMNS)} |"
        for name, row in sorted(cells.items())
    ]
    return _HEAD + said + "\n\n" + "\n".join(lines) + "\n"


def _cell(verdict: Verdict) -> str:
    return {EXACT: EXACT, CLOSE: CLOSE, REFUSED: verdict.about}.get(verdict.kind, verdict.kind.upper())
