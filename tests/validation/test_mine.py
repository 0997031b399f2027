# SPDX-License-Identifier: Apache-2.0
"""A user's own measured runs: read, planned, kept, and what bands are made of then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trnlab.cli.main import main
from trnlab.cli.planning import bakeoff
from trnlab.errors import UsageError
from trnlab.fleet.comparison.contenders import neuron_contender
from trnlab.stacks import OURS, VENDOR
from trnlab.validation import mine, planned

RUN = """
[[run]]
model = "gpt2"
target = "trn1.2xlarge"
instances = 1
batch = 16
sequence = 256
layout = "mb=8"
step_s = 0.5
release = "2.20"
"""


def _file(folder, text):
    file = folder / "runs.toml"
    file.write_text(text)
    return file


def test_runs_are_planned_under_both_stacks_and_kept(tmp_path):
    (row,) = mine.compared(mine.read(_file(tmp_path, RUN)), None, lambda _: None)
    assert row.measured == 32
    assert row.stack.release == "2.20"
    assert 0 < row.step_s < row.vendor_s < 0.5
    assert row.error(OURS) > row.error(VENDOR) > 0
    mine.keep([row], tmp_path)
    assert mine.kept(tmp_path) == [row]
    assert mine.kept(tmp_path / "elsewhere") == mine.kept(None) == []


def test_enough_runs_of_ones_own_make_the_band():
    known = planned.load()[0]
    rows = [replace(known, split="yours", vendor_s=known.vendor_s * (1 + i / 100)) for i in range(planned.ENOUGH)]
    few, enough = (planned.held("trn1.32xlarge", "bf16", VENDOR, some) for some in (rows[:-1], rows))
    assert "published" in few.runs
    assert "yours" in enough.runs
    assert enough.errors == tuple(row.error(VENDOR) for row in rows)
    assert "published" in planned.held("trn2.48xlarge", "bf16", VENDOR, rows).runs


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("step_s = 0", "step_s"),
        ("step_s = nan", "step_s"),
        ("batch = 1.5", "batch"),
        ("instances = true", "instances"),
        ('target = "trn9"', "trn9"),
        ('precision = "fp4"', "fp4"),
        ("speed = 3", "speed"),
    ],
)
def test_what_is_no_run_is_named(tmp_path, line, got):
    name = line.split()[0]
    text = "\n".join(each for each in RUN.splitlines() if not each.startswith(name)) + f"\n{line}\n"
    with pytest.raises(UsageError, match=got) as said:
        mine.read(_file(tmp_path, text))
    assert said.value.code == "TRN588"


@pytest.mark.parametrize("text", ["", "run = 3", "[[run", '[[run]]\nmodel = "gpt2"'])
def test_a_file_without_a_whole_run_is_refused(tmp_path, text):
    with pytest.raises(UsageError) as said:
        mine.read(_file(tmp_path, text))
    assert said.value.code == "TRN588"


def test_a_release_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(UsageError) as said:
        mine.read(_file(tmp_path, RUN.replace("2.20", "newest")))
    assert said.value.code == "TRN587"


def test_bake_offs_read_the_runs_that_are_kept(tmp_path, monkeypatch):
    known = planned.load()[0]
    rows = [replace(known, split="yours", vendor_s=known.vendor_s * (1 + i / 100)) for i in range(planned.ENOUGH)]
    mine.keep(rows, tmp_path / mine.FOLDER)
    asked = []

    def of_neuron(work, name, count, held, *rest):
        asked.append(held)
        return neuron_contender(name, count, 1.0, 0.5, held)

    monkeypatch.setattr(bakeoff, "of_neuron", of_neuron)
    words = ["bakeoff", "llama3-8b", "--a", "trn1.32xlarge", "--b", "p5.48xlarge"]
    assert main([*words, "--cache", str(tmp_path)]) == main([*words, "--no-cache"]) == 0
    vendor, ours, without, _ = asked
    assert vendor == planned.held("trn1.32xlarge", "bf16", VENDOR, rows)
    assert ours == planned.held("trn1.32xlarge", "bf16", OURS, rows)
    assert "yours" in vendor.runs
    assert "yours" in ours.runs
    assert without == planned.held("trn1.32xlarge", "bf16", VENDOR)
