# SPDX-License-Identifier: Apache-2.0
"""The table of accuracy on README.md, which is the site's first page, too: made of what `trnlab validate` shows.

python tests/docs/test_accuracy_table.py        # writes the table into the page
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import pytest

from trnlab.cli.main import main
from trnlab.stacks import VENDOR
from trnlab.validation import collectives, inference, planned, sources
from trnlab.validation.anchors import Split
from trnlab.validation.sources.report import summaries

PAGE = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"(?<=<!-- accuracy -->\n).*?(?=<!-- end of accuracy -->)", re.DOTALL)
KERNELS = {
    "kernels": "kernels of six public repositories",
    "attention": "attention kernels, 512 to 4096 keys",
    "tutorials": "kernels of the vendor's tutorials",
}


class Row(NamedTuple):
    """What was measured, of how many runs that nothing was fitted to, and the errors as shares."""

    title: str
    runs: int
    figures: tuple[float, float, float]  # median, nine of ten, worst


def rows() -> Iterator[Row]:
    yield _row("training, 1 to 64 instances", _rates(planned.load()))
    yield _row("inference, encoders and decoders", _rates(inference.load()))
    for s in summaries([row.timed for row in sources.recorded()]):
        if s.group in KERNELS and s.split is Split.CHECK:
            assert s.median is not None
            assert s.percentile_90 is not None
            assert s.worst is not None
            yield Row(KERNELS[s.group], s.kernels, (s.median, s.percentile_90, s.worst))
    yield _row("collectives", [row.error for row in collectives.validate() if row.split is Split.CHECK])


def _rates(runs: Sequence[planned.MeasuredRate]) -> list[float]:
    return [run.error(VENDOR) for run in runs if run.split == Split.CHECK]


def _row(title: str, errors: Sequence[float]) -> Row:
    sizes = sorted(map(abs, errors))
    return Row(title, len(sizes), (median(sizes), quantiles(sizes, n=10, method="inclusive")[-1], sizes[-1]))


def table() -> str:
    """The block of the page."""
    lines = ["| measured on chips | runs | median error | nine of ten within | worst |", "|---|---|---|---|---|"]
    lines += [f"| {row.title} | {row.runs} | {' | '.join(map(_percent, row.figures))} |" for row in rows()]
    return "\n".join(lines) + "\n"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"


def test_the_page_shows_what_is_recorded():
    found = BLOCK.search(PAGE.read_text())
    assert found is not None
    assert found[0] == table(), "python tests/docs/test_accuracy_table.py"


def test_validate_prints_the_same(capsys):
    """The command's own lines: runs, median, nine of ten and worst where it has all of them."""
    assert main(["validate"]) == 0
    printed = capsys.readouterr().out
    lines = re.findall(
        r"vendor, check: (\d+) runs, median (.*)%, nine of ten within (.*)%, worst (.*)%, mid", printed
    )
    for group in KERNELS:
        lines += re.findall(rf"^{group}, check +(\d+) +0 +(\S+)% +(\S+)% +(\S+)%$", printed, re.MULTILINE)
    shown = list(rows())
    assert len(lines) == len(shown) - 1, "all but collectives, whose summary has no ninth of ten"
    for line, row in zip(lines, shown, strict=False):
        assert line == (str(row.runs), *(f"{100 * x:.1f}" for x in row.figures))
    runs, *_, worst = re.search(r"collectives, check +(\d+) +(\S+) +(\S+)%", printed).groups()
    assert (int(runs), float(worst)) == (shown[-1].runs, pytest.approx(100 * shown[-1].figures[2], abs=1))


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda _: table(), PAGE.read_text()))
