# SPDX-License-Identifier: Apache-2.0
"""`trnlab check` and `trnlab estimate` in every precision: time as a run takes it, memory, rules, refusals."""

from __future__ import annotations

import json

import pytest
from check_scripts import CLEAN

from trnlab.cli.main import main

pytestmark = pytest.mark.torch

WIDER = (("nn.Linear(16, 32)", "nn.Linear(16, 160)"), ("nn.Linear(32, 4)", "nn.Linear(160, 4)"))
RULES = '[[rule]]\nmodules = "2"\nformat = "mxfp8"\n'


def script(folder, name="compile_step"):
    source = CLEAN[name]
    for old, new in WIDER:
        source = source.replace(old, new)
    path = folder / "train.py"
    path.write_text(source)
    return str(path)


def estimated(folder, capsys, *arguments, name="compile_step"):
    """What `trnlab estimate --json` says."""
    main(["estimate", "--stack", "ours", "--json", "--no-cache", *arguments, script(folder, name)])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("precision", ["bf16", "fp32", "bf16-all", "fp8", "mxfp8"])
def test_an_estimate_is_the_time_of_the_run(precision, tmp_path, capsys) -> None:
    told = estimated(tmp_path, capsys, "--target", "trn3", "--precision", precision)
    arguments = ["--target", "trn3", "--precision", precision, "--no-cache", "--out", str(tmp_path / "run")]
    assert main(["run", *arguments, script(tmp_path)]) == 0
    ran = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["precision"] == ran["precision"] == precision
    assert told["targets"][0]["step_s"] == pytest.approx(ran["step_time_s"], rel=1e-9)


@pytest.mark.parametrize("name", ["compile_step", "torch.compile"])
def test_all_in_bf16_takes_half_of_the_state(name, tmp_path, capsys) -> None:
    wide, narrow = (
        estimated(tmp_path, capsys, "--target", "trn2", "--precision", mode, name=name)["targets"][0]["memory"]
        for mode in ("fp32", "bf16-all")
    )
    assert narrow["parameters"] * 2 == wide["parameters"]
    assert 0.5 <= narrow["state"] / wide["state"] < 0.51, "counts of steps stay in float32"


def test_several_targets_in_fp8_and_each_has_its_time(tmp_path, capsys) -> None:
    """The OCP's E4M3 is not on Trainium2; the same script is told for both, in either order."""
    told = estimated(tmp_path, capsys, "--target", "trn3,trn2", "--precision", "fp8")
    assert [t["name"] for t in told["targets"]] == ["trn3", "trn2"]
    assert all(t["step_s"] > 0 for t in told["targets"])
    assert not told["findings"]


def test_a_target_without_the_format_is_refused_beside_one_that_has_it(tmp_path, capsys) -> None:
    told = estimated(tmp_path, capsys, "--target", "trn2,trn3", "--precision", "mxfp8")
    first, second = told["targets"]
    assert "TRN245" in first["why"]
    assert second["step_s"] > 0
    assert [f["code"] for f in told["findings"]] == ["TRN245"]


def test_a_rule_that_the_chip_cannot_follow_is_named(tmp_path, capsys) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    assert main(["check", "--target", "trn2", "--precision-rules", str(rules), script(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "TRN245" in said
    assert "the rule for '2'" in said
    assert 'format = "fp8" in that rule' in said


def test_a_rule_changes_what_is_told_and_what_was_kept(tmp_path, capsys) -> None:
    """A report of the last time is not that of other rules, not even of the same file with other contents."""
    rules, times = tmp_path / "rules.toml", []
    for content in ("", RULES, RULES.replace("mxfp8", "fp32")):
        rules.write_text(content)
        arguments = ["--target", "trn3", "--cache", str(tmp_path / "cache"), "--precision-rules", str(rules)]
        main(["estimate", "--stack", "ours", "--json", *arguments, script(tmp_path)])
        times.append(json.loads(capsys.readouterr().out)["targets"][0]["step_s"])
    assert len(set(times)) == 3
