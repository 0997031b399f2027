# SPDX-License-Identifier: Apache-2.0
"""Table, band and picture of the assumptions that a run's time leans on."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from profile_samples import round_summary

from trnlab.cli.main import main
from trnlab.documents import text
from trnlab.profile import schema
from trnlab.profile.data import FILE
from trnlab.validation.sensitivity import PICTURE, Sensitivity, document, tornado


def entry(figure, halved, doubled):
    return {
        "figure": figure,
        "value": 5,
        "unit": "ns",
        "reason": "as <elsewhere>",
        "halved": halved,
        "doubled": doubled,
    }


FOUND = Sensitivity(0.010, (entry("dma.descriptor", -0.03, 0.06), entry("sync.profiler", 0.04, -0.04)))


def test_the_band_adds_independent_changes():
    low, high = FOUND.band
    assert low == pytest.approx(0.010 * (1 - 0.05))
    assert high == pytest.approx(0.010 * (1 + (0.06**2 + 0.04**2) ** 0.5))


def test_without_assumptions_there_is_no_band():
    exact = Sensitivity(0.010, ())
    assert exact.band == (0.010, 0.010)
    assert "no assumed figure" in text(document(exact))
    ET.fromstring(tornado(exact))


def test_of_the_values_of_one_option_the_shortest_and_the_longest_count():
    choices = tuple(
        {"option": option, "value": value, "change": change}
        for option, value, change in (("window", "64", 0.02), ("window", "8", 0.08), ("triggers", "sync", -0.03))
    )
    found = Sensitivity(0.010, FOUND.assumptions, choices)
    low, high = found.band
    assert low == pytest.approx(0.010 * (1 - (0.03**2 + 0.04**2 + 0.03**2) ** 0.5))
    assert high == pytest.approx(0.010 * (1 + (0.06**2 + 0.04**2 + 0.08**2) ** 0.5))
    assert "+8.00% if the compiler's window is 8" in text(document(found))
    assert "-3.00% if the compiler's triggers is sync" in text(document(Sensitivity(0.010, (), choices)))


def test_the_picture_has_two_bars_per_assumption_and_the_larger_change_is_the_wider():
    root = ET.fromstring(tornado(FOUND))
    svg = "{http://www.w3.org/2000/svg}"
    widths = [float(r.attrib["width"]) for g in root.iter(f"{svg}g") for r in g.iter(f"{svg}rect")]
    assert len(widths) == 4
    assert widths[1] == max(widths)
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)


def test_the_command_reads_a_run_and_leaves_the_picture(tmp_path, capsys):
    summary = round_summary(step_time_s=0.01, assumptions=list(FOUND.assumptions))
    (tmp_path / FILE).write_text(json.dumps(summary))
    assert main(["sensitivity", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "dma.descriptor" in out
    assert "between 9.5 ms and 10.7 ms" in out
    ET.fromstring((tmp_path / PICTURE).read_text())


def test_a_run_without_a_step_is_refused(tmp_path, capsys):
    untimed = {k: v for k, v in round_summary(status="failed", complete=False).items() if k not in schema.TIMED}
    (tmp_path / FILE).write_text(json.dumps(untimed))
    assert main(["sensitivity", str(tmp_path)]) == 2
    assert "TRN814" in capsys.readouterr().err
