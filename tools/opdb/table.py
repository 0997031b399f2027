# SPDX-License-Identifier: Apache-2.0
"""docs/operators.md: what a compiled program does with each operator and dtype, from measured results.

python -m tools.opdb --mode compiled --json results.jsonl
python -m tools.opdb.table results.jsonl            # writes docs/operators.md
python -m tools.opdb.table --update results.jsonl   # what was run again; other cells stay
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.opdb.report import read_json
from tools.opdb.verdicts import FAILED, PASSED, REFUSED, Record

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
DTYPES = ("float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
_CLOSE = (
    1024  # beyond so many units in the last place an element nearly cancelled, and only the tolerance says something
)
_HEAD = """# Operators

What a compiled program does with PyTorch's operators, measured: each was run on samples of PyTorch's own operator
database (`op_db`), forward and backward, on the simulated chip, and compared with PyTorch on the CPU. The page is
written by `python -m tools.opdb.table`; `make opdb` makes the results.

- `exact`: equal to the CPU's result in every bit (zeros of either sign count as equal).
- a number: the largest distance from the CPU's result in units in the last place of the format. The CPU's result is
  rounded, too, and two sums in different orders are both right.
- `close`: elements that nearly cancel are farther apart than that, and within the tolerance of
  `torch.testing.assert_close` or of what the inputs' own rounding makes of them.
- a code such as TRN201: refused, with the operator's line and a way out; see [errors](errors.md). `+` before a code:
  some samples run, others (or the backward pass) are refused.
- `FAILS`: wrong, or a crash from inside. There should be none.
- empty: PyTorch on the CPU does not have it, or the run did not take it.

PyTorch leaves open which of several equal elements sort, argsort, msort, topk and kthvalue name first. Places are
judged by the elements there; gradients of inputs with equal elements are not judged.

float64 (TRN212) is refused in compiled programs, and so are complex128 and the operators that have no form in real
and imaginary parts (TRN203). In eager mode the host runs every operator in every dtype that PyTorch has.

"""


def cells(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """What the table says of each operator and dtype, from the records of compiled programs."""
    grouped: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for r in records:
        if r.mode == "compiled":
            grouped[r.op, r.dtype].append(r)
    return {key: _cell(group) for key, group in grouped.items()}


def _cell(group: list[Record]) -> str:
    kinds = Counter(r.verdict.kind for r in group)
    if kinds[FAILED]:
        return "FAILS"
    code = Counter(r.verdict.code for r in group if r.verdict.kind == REFUSED).most_common(1)
    if not kinds[PASSED]:
        return code[0][0]
    worst = max(r.verdict.ulp for r in group if r.verdict.kind == PASSED)
    runs = "exact" if worst == 0 else str(worst) if worst <= _CLOSE else "close"
    return f"{runs} +{code[0][0]}" if code else runs


def page(found: Mapping[tuple[str, str], str]) -> str:
    """The whole page, of cells by operator and dtype."""
    found = {(op, dtype): cell for (op, dtype), cell in found.items() if dtype in DTYPES}
    dtypes = [d for d in DTYPES if any(dtype == d for _, dtype in found)]
    names = sorted({op for op, _ in found}, key=str.lower)
    rows = [f"| {op} | " + " | ".join(found.get((op, d), "") for d in dtypes) + " |" for op in names]
    head = ["| operator | " + " | ".join(dtypes) + " |", "|---|" + "---|" * len(dtypes)]
    return _HEAD + _counted(found) + "\n".join([*head, *rows]) + "\n"


def _counted(found: Mapping[tuple[str, str], str]) -> str:
    kinds = Counter(kind_of(cell) for cell in found.values())
    total = sum(kinds.values())
    words = ", ".join(f"{kinds[k]} {k}" for k in ("run", "run in part", "refused", "FAILS"))
    return f"Of {total} pairs of operator and dtype: {words}.\n\n"


def kind_of(cell: str) -> str:
    """A cell without its figures, which differ from one CPU to the next: "run", "run in part", "refused", "FAILS"."""
    if cell == "FAILS":
        return cell
    if re.fullmatch(r"TRN\d+", cell):
        return "refused"
    return "run in part" if "+" in cell else "run"


def read_page(text: str) -> dict[tuple[str, str], str]:
    """The cells of a page."""
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    head, *body = rows or [[""]]
    return {(row[0], dtype): cell for row in body for dtype, cell in zip(head[1:], row[1:]) if cell}


if __name__ == "__main__":
    known = read_page(PAGE.read_text()) if sys.argv[1] == "--update" else {}
    PAGE.write_text(page(known | cells(read_json(Path(sys.argv[-1])))))
