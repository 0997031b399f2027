# SPDX-License-Identifier: Apache-2.0
"""The page docs/functions.md: how far each function of floats may be off and is, how it is computed, its cost.

    python tests/docs/functions_page.py         # measures, and writes the page

The bounds are those of the table in tests/frontends/accuracy.py, which tests enforce.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frontends"))

from accuracy import FUNCTIONS, Function, bound, cost, measured

PAGE = Path(__file__).resolve().parents[2] / "docs" / "functions.md"
CHIP = "trn2"
MARK = "<!-- from here on: python tests/docs/functions_page.py -->\n"
HEAD = (
    "| function | bound | chip | interpreter | 16 bits: bound | bf16 | fp16 | instructions | us | method |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def table() -> str:
    """The rows of the page, measured now."""
    return MARK + "\n" + "\n".join((*HEAD, *map(row, FUNCTIONS))) + "\n"


def row(function: Function) -> str:
    """One function: bounds and worst errors in ulp, what a tile of 128 x 512 costs."""
    wide = [measured(function, "float32", engine).max() for engine in (CHIP, "interpreter")]
    narrow = [measured(function, format, CHIP).max() for format in ("bfloat16", "float16")]
    instructions, microseconds = cost(function, CHIP)
    low, high = bounds(function)
    figures = [low, *map(_ulp, wide), high, *map(_ulp, narrow), str(instructions), f"{microseconds:.1f}"]
    return (
        "| " + " | ".join((function.name.replace("|", "\\|"), *figures, function.method.replace("|", "\\|"))) + " |"
    )


def bounds(function: Function) -> tuple[str, str]:
    """What is allowed in fp32, and in formats of 16 bits."""
    return _ulp(bound(function, "float32")) + _condition(function), _ulp(bound(function, "bfloat16"))


def _ulp(number: float) -> str:
    return f"{math.ceil(number * 100 - 1e-6) / 100:g}"


def _condition(function: Function) -> str:
    """Where the bound counts other steps than the result's."""
    if math.isinf(function.far):
        return ", to 2^13"
    if function.far:
        return f"; from 2^13 on of at least 2^{round(math.log2(function.far))}"
    return f", of at least 2^{round(math.log2(function.floor))}" if function.floor else ""


def rewrite() -> None:
    """Put what is measured now into the page."""
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(MARK)] + table())


if __name__ == "__main__":
    rewrite()
