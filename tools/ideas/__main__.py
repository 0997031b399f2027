# SPDX-License-Identifier: Apache-2.0
"""Make public kernels faster with `trnlab ideas`, and keep what came out.

    python -m tools.ideas --fetch-list DIR | sh     # clones at pinned commits
    python -m tools.ideas DIR [--only TEXT]         # changes them, and writes rows.json
    python -m tools.ideas --page                    # the table of docs/bench.md, from rows.json

Nothing of their code is kept: a row has names, times and the names of changes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trnlab.bench.candidate import candidate
from trnlab.bench.ideas import search
from trnlab.bench.ideas.candidates import trial_of
from trnlab.bench.judging import ProblemSpec
from trnlab.bench.ladder import KernelBench
from trnlab.bench.recording import on_target
from trnlab.units import format_time

HERE = Path(__file__).parent
ROWS, PAGE = HERE / "rows.json", HERE.parents[1] / "docs" / "bench.md"
BEGIN, END = "<!-- ideas -->", "<!-- end of ideas -->"
SEED = 20261128  # of the inputs on which bits are compared


def entries() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each kernel with its repository."""
    for repository in tomllib.loads((HERE / "kernels.toml").read_text(encoding="utf-8"))["repository"]:
        yield from ((repository, kernel) for kernel in repository["kernel"])


def changed(folder: Path, repository: dict[str, Any], kernel: dict[str, Any]) -> dict[str, Any]:
    """The row of a kernel from the clones in `folder`. Raises TrnlabError for one that is not there."""
    clone = folder / repository["name"].partition("/")[2]
    reference = str(clone / kernel["reference"]) if "reference" in kernel else None
    spec = ProblemSpec(reference, tuple(kernel.get("inputs", ())), SEED, ())
    target = repository.get("target", "trn2")
    with on_target(target):
        trial = trial_of(KernelBench(spec, target, band=False), candidate(str(clone / kernel["path"])))
        after, steps = search.climbed(trial, progress=lambda what: print(f"    {what}", file=sys.stderr))
    return {
        "kernel": kernel["name"],
        "from": repository["name"],
        "chip": target,
        "before_ps": trial.total,
        "after_ps": after.total,
        "how": [[s.tried.change.name, round(s.factor, 3)] for s in steps],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown, the largest factor first."""
    lines = ["| kernel | chip | before | after | factor | how |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda r: r["after_ps"] / r["before_ps"]):
        how = ", ".join(f"{name} {factor:.2f}" for name, factor in row["how"]) or "nothing gains"
        times = [format_time(row[key]) for key in ("before_ps", "after_ps")]
        lines.append(
            f"| {row['kernel']} | {row['chip']} | {' | '.join(times)} | "
            f"{row['before_ps'] / row['after_ps']:.2f} | {how} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tools.ideas")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="")
    parser.add_argument("--fetch-list", type=Path)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    rows = {row["kernel"]: row for row in json.loads(ROWS.read_text())} if ROWS.exists() else {}
    if args.fetch_list is not None:
        for name, commit in {r["name"]: r["commit"] for r, _ in entries()}.items():
            place = args.fetch_list / name.partition("/")[2]
            print(f"git clone -q https://github.com/{name} {place} && git -C {place} checkout -q {commit}")
    for repository, kernel in entries() if args.folder is not None else ():
        if args.only in kernel["name"]:
            rows[kernel["name"]] = row = changed(args.folder, repository, kernel)
            ROWS.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
            print(f"{row['kernel']}: {row['before_ps'] / row['after_ps']:.3f} x", flush=True)
    if args.page:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{table(list(rows.values()))}{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
