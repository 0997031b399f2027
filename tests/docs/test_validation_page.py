# SPDX-License-Identifier: Apache-2.0
"""docs/validation.md shows what was recorded: its tables are made of `results.json` and `not_covered.toml` in
`validation/data`.

    trnlab validate --sources DIR --record           # times the kernels from their sources
    python tests/docs/test_validation_page.py        # writes the tables into the page
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import pytest

from trnlab import chips
from trnlab.chips import Confidence
from trnlab.units import format_time
from trnlab.validation import anchors, collectives, sources
from trnlab.validation.anchors import Split, Uncovered
from trnlab.validation.sources.order import correlations, overall, pairs
from trnlab.validation.sources.report import SPLITS, summaries, typical_errors
from trnlab.validation.sources.results import KernelRow, TimedKernel

PAGE = Path(__file__).resolve().parents[2] / "docs" / "validation.md"
AIMS = {"kernels": {"calibration": "8 %, 30 % at most", "check": "8 %, 25 % in nine of ten"}, "profiles": {}}
_TITLES = {
    "kernels": "kernels of six public repositories",
    "profiles": "two attention kernels under the profiler, 512 and 1024 keys",
    "attention": "the two attention kernels without profiler, 512 to 4096 keys",
    "tutorials": "kernels of the vendor's tutorials",
}


def percent(share: float, sign: str = "") -> str:
    return f"{100 * share:{sign}.0f} %" if abs(share) >= 0.1 else f"{100 * share:{sign}.1f} %"


def rows_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def headline() -> str:
    """When and by what the kernels were timed; errors by group and split; pairs in the wrong order."""
    rows = sources.recorded()
    results = [row.timed for row in rows]
    table = [
        [
            _TITLES[s.group],
            s.split.value,
            str(s.kernels),
            str(s.refused),
            *(percent(x) if x is not None else "-" for x in (s.median, s.percentile_90, s.worst)),
            AIMS.get(s.group, {}).get(s.split.value, "none set"),
        ]
        for s in summaries(results)
    ]
    head = ("from their sources", "split", "kernels", "refused", "median error", "90 %", "worst", "aim")
    return f"{_made(rows)}\n\n{rows_of(head, table)}\n{_pairs(results)}"


def _made(rows: Sequence[KernelRow]) -> str:
    made = sorted({row.made for row in rows})
    return (
        f"Timed on {' and '.join(made)}, policy `{'`, `'.join(sorted({row.policy for row in rows}))}`, by the model "
        f"{', '.join(sorted({row.model for row in rows}))} (`trnlab validate` says whether that is the present one)."
    )


def _pairs(results: Sequence[TimedKernel]) -> str:
    count, wrong = pairs(results)
    ladders = [r for r in results if r.kernel.group == "kernels"]
    text = (
        f"Kendall's tau {_tau('of the ladders of kernels', ladders)}, aim 0.9; {_tau('of all variants', results)}. "
        "(A pair counts where the chip tells its two apart by 5 %; nothing was fitted to it. `trnlab validate` lists "
        "the problems.)\n\n"
        f"Of {count} pairs of variants that differ by more than 5 % on the chip {count - len(wrong)} are in order"
    )
    if not wrong:
        return text + ".\n"
    head = ("slower on the chip", "predicted", "faster on the chip", "predicted")
    rows = [[cell for timed in pair for cell in _variant(timed)] for pair in wrong]
    return text + f". Predicted the other way round:\n\n{rows_of(head, rows)}"


def _tau(what: str, results: Sequence[TimedKernel]) -> str:
    found = overall(correlations(results))
    here, there = found.tied
    return f"{what}: {found.tau:.2f} over {found.pairs} pairs, {here} of {there} ties of the chip are ties here"


def _variant(timed: TimedKernel) -> tuple[str, str]:
    k = timed.kernel
    return f"{k.id} {k.name.partition(': ')[2]}, {format_time(k.measured)}", format_time(timed.predicted or 0)


def kernels() -> str:
    """Every kernel that was timed from its source."""
    return rows_of(
        ("id", "kernel", "split", "chip", "predicted", "error"), [_kernel(row.timed) for row in sources.recorded()]
    )


def _kernel(timed: TimedKernel) -> list[str]:
    k = timed.kernel
    about = [k.id, k.name, k.split.value, format_time(k.measured)]
    if timed.predicted is None or timed.error is None:
        return [*about, "refused", timed.refusal.partition(":")[0]]
    return [*about, format_time(timed.predicted), percent(timed.error, "+")]


def quantities() -> str:
    """What the profiles say beyond totals: median and worst errors by split."""
    found = typical_errors([row.timed for row in sources.recorded()])
    cells = lambda v: [percent(median(v)), percent(max(v))] if v else ["-", "-"]  # noqa: E731
    rows = [[name, *(c for s in SPLITS for c in cells(by_split.get(s, [])))] for name, by_split in found.items()]
    return rows_of(("quantity", "512 keys: median", "worst", "1024 keys (checks): median", "worst"), rows)


def not_covered() -> str:
    """Measured, and held against no prediction: how many quantities of what, and why."""
    rows = []
    for why in Uncovered:
        for m in (m for m in anchors.load() if m.why is why):
            what = Counter(a.quantity.partition(" ")[0] for a in m.anchors)
            rows.append([m.name, m.chip, why.value, ", ".join(f"{n} {name}" for name, n in what.items())])
    return rows_of(("measured, not covered", "chip", "why", "quantities"), rows)


def figures() -> str:
    """How the figures of each chip are known."""
    counts = {name: [f.confidence for _, f in chips.figures(chips.get(name))] for name in chips.NAMES}
    rows = [[name, *(str(found.count(c)) for c in Confidence)] for name, found in counts.items()]
    return rows_of(("figures of", *(c.value for c in Confidence)), rows)


def network() -> str:
    """Printed times of collectives, timed now: by split and size, and every row."""
    rows = collectives.validate()
    head = ("printed runs", "rows", "median error", "worst")
    table = []
    for title, chosen in collectives.groups(rows):
        errors = [abs(row.error) for row in chosen]
        table.append([title, str(len(chosen)), percent(median(errors)), percent(max(errors))])
    names = list(dict.fromkeys(row.run for row in rows))
    every = [[f"`{run.name}`", run.target, run.runtime, *_errors(rows, run)] for run in names]
    return rows_of(head, table) + "\n" + rows_of(("run", "target", "runtime", "calibration", "check"), every)


def _errors(rows: Sequence[collectives.TimedRow], run: collectives.PublishedRun) -> list[str]:
    mine = [row for row in rows if row.run is run]
    return [
        ", ".join(f"{_size(row.size)} {percent(row.error, '+')}" for row in mine if row.split is split) or "-"
        for split in SPLITS
    ]


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if nbytes >= unit:
            return f"{nbytes // unit}{name}"
    return str(nbytes)


BLOCKS: dict[str, Callable[[], str]] = {
    "headline": headline,
    "kernels": kernels,
    "quantities": quantities,
    "not covered": not_covered,
    "figures": figures,
    "network": network,
}


def pattern(name: str) -> re.Pattern[str]:
    return re.compile(f"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_shows_what_was_recorded(name):
    """After `trnlab validate --sources DIR --record`: python tests/docs/test_validation_page.py."""
    assert pattern(name).search(PAGE.read_text())[0] == BLOCKS[name]()


def test_every_kernel_of_the_catalogue_has_a_recorded_result():
    assert [row.timed.kernel.id for row in sources.recorded()] == [k.id for k in sources.load()]


def test_recorded_results_are_of_the_measurements_that_the_catalogue_holds():
    """A measurement that was corrected, and a result that was made before, do not go together."""
    for row in sources.recorded():
        if row.timed.quantities:
            total = next(q for q in row.timed.quantities if q.name == "total")
            assert total.measured == pytest.approx(row.timed.kernel.measured, rel=1e-4)
            assert total.predicted == row.timed.predicted


def test_the_page_says_which_splits_there_are():
    text = PAGE.read_text()
    assert all(f"`{split.value}`" in text for split in Split)


def update() -> None:
    """Write the tables into the page."""
    text = PAGE.read_text()
    for name, make in BLOCKS.items():
        found = pattern(name).search(text)
        assert found, name
        text = text[: found.start()] + make() + text[found.end() :]
    PAGE.write_text(text)


if __name__ == "__main__":
    update()
