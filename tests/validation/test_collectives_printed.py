# SPDX-License-Identifier: Apache-2.0
"""Printed times of collectives: the split follows the rule in the file, and the errors are those that docs report."""

from __future__ import annotations

import json
import re
from statistics import median

import pytest

from trnlab.cli.main import main
from trnlab.validation import collectives
from trnlab.validation.anchors import Split

RUNS = collectives.load()
RESTED_ON = {
    "allg -r 32, newer (mean of two runs)": 1024,
    "EFA, sixteen chips write": 1 << 30,
}  # figures of chips did


def test_the_split_is_the_one_of_the_rule():
    """First, third, fifth ... of runs of three rows and more; before all, rows that figures rested on."""
    for run in RUNS:
        assert [size for size, _, _ in run.rows] == sorted(size for size, _, _ in run.rows)
        for place, (size, _, split) in enumerate(run.rows):
            drawn = len(run.rows) >= collectives.FEW and place % 2 == 0
            wanted = Split.CALIBRATION if drawn or RESTED_ON.get(run.name) == size else Split.CHECK
            assert split is wanted, (run.name, size)


def test_worlds_that_trainium1_does_not_have_are_trainium2s():
    for run in RUNS:
        count = int(run.target.partition("x")[0]) if run.target[0].isdigit() else 1
        if run.operation != "write":
            one = run.ranks // count in (1, 2, 8, 32) and "alltoallv" not in run.name
            assert ("trn1" in run.target) == one, run.name


def test_runs_are_as_their_commands_say():
    """The bus bandwidth that is printed of the first of two streams, 16.71 GiB/s of 8.91, is that of groups of 16."""
    (first,) = [run for run in RUNS if run.group]
    assert 2 * (first.group - 1) / first.group == pytest.approx(16.71 / 8.91, rel=1e-3)
    (permute,) = [run for run in RUNS if run.operation == "permute"]
    assert sorted(b for _, b in permute.pairs) == list(range(permute.ranks))


@pytest.mark.parametrize(("split", "middle", "worst"), [(Split.CALIBRATION, 0.05, 0.35), (Split.CHECK, 0.12, 0.40)])
def test_errors_are_no_larger_than_reported(split, middle, worst):
    """The aim is 15 % in the middle, 40 % at worst."""
    errors = [abs(row.error) for row in collectives.validate() if row.split is split]
    assert median(errors) <= middle
    assert max(errors) <= worst


def test_large_messages_are_within_what_was_aimed_at():
    """Above 1 MiB, where bytes and not launches decide, the checks alone."""
    rows = [row for row in collectives.validate() if row.size > 1 << 20 and row.split is Split.CHECK]
    assert len(rows) >= 10
    assert median(abs(row.error) for row in rows) < 0.1


def test_the_command_reports_collectives_by_name_and_as_json(capsys):
    assert main(["validate", "--only", "allr -r 64"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"\bcheck\b", out)) >= 7
    assert "hier" in out
    assert main(["validate", "--only", "allr -r 64", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["collectives"]
    assert len(rows) == 15
    assert all(row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1) for row in rows)
