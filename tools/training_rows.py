# SPDX-License-Identifier: Apache-2.0
"""Estimate the published training runs anew, and keep the results in `validation/data/training/published.toml`.

python tools/training_rows.py [NAME]     all that have a script or a layout, or those whose name has NAME in it

Layouts take 5 to 15 s of processor time each, scripts minutes.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

from trnlab.fabric.cluster import parse
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.models import configurations as catalogue
from trnlab.fleet.search.layout import Layout
from trnlab.fleet.search.shard_costs import Training
from trnlab.fleet.search.steps import Planner
from trnlab.runtime.session import Session
from trnlab.validation.training import TrainingRow, load

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "src/trnlab/validation/data/training/published.toml"


def seconds(row: TrainingRow, arguments: str) -> float:
    """The estimated step of a row's script."""
    command = [
        sys.executable,
        "-m",
        "trnlab.cli.main",
        "estimate",
        "--json",
        "--target",
        row.target,
        "--ranks",
        str(row.ranks),
        "--precision",
        row.precision,
        "--stack",
        "ours",
        row.script,
        *arguments.split(),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["targets"][0]["step_s"])


def planned(row: TrainingRow) -> dict[str, float]:
    """Seconds of the step of a row's layout, by cause."""
    options = dict(row.layout)
    training = Training(catalogue.model(options.pop("model")), row.global_batch, options.pop("sequence"))
    cluster = parse(row.target)
    programs = Programs(Session(cluster.target))
    how = {name: options.pop(name) for name in ("attention", "network") if name in options}
    planner = Planner(cluster, programs, Exchange(cluster.target), **how)
    step = planner.step(training, Layout(microbatch=row.microbatch, **options))
    return {name: round(float(found), 4) for name, found in step.seconds.items()}


def keep(
    name: str, found: dict[str, object], computed: str = "first_s|more_s|model|seconds", data: Path = DATA
) -> None:
    """Put what was found behind a row's other lines, in the place of what is computed there."""
    before, start, rest = data.read_text().partition(f'name = "{name}"\n')
    entry, sep, after = rest.partition("\n[[row]]")
    entry = re.sub(rf"\n({computed}) = .*", "", entry).rstrip("\n")
    lines = "".join(f"\n{key} = {_written(value)}" for key, value in found.items())
    data.write_text(f"{before}{start}{entry}{lines}\n{sep}{after}")


def _written(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {json.dumps(x)}" for name, x in value.items()) + " }"
    return json.dumps(value)


def main(wanted: str) -> None:
    """Estimate and keep."""
    for row in load():
        if (row.script or row.layout) and wanted in row.name:
            found: dict[str, object] = {}
            if row.layout:
                found["seconds"] = planned(row)
            else:
                found["first_s"] = seconds(row, row.arguments)
            if row.more:
                found["more_s"] = seconds(row, row.more)
            keep(row.name, found | {"model": datetime.datetime.now(datetime.UTC).date().isoformat()})
            print(row.name, found, flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
