# SPDX-License-Identifier: Apache-2.0
"""One record of settings: the command line, the environment, sessions and other processes all have every field."""

from __future__ import annotations

import json
import os

import pytest

from trnlab import checks, policy
from trnlab.cli.commands import parsed
from trnlab.errors import UsageError
from trnlab.runtime import checkpoint_plan
from trnlab.runtime.session import Session, from_settings
from trnlab.runtime.settings import SETTINGS, Settings, kept_folder, said

RULES = '[[rule]]\nmodules = ["head"]\nformat = "fp32"\n'
# A value of each setting that is not its default, as text.
OTHER = {
    "target": "2xtrn2.48xlarge",
    "precision": "fp32",
    "precision_rules": "rules.toml",
    "cache": "elsewhere",
    "no_cache": True,
    "fault": "efa:node1.rail3=half,rank2:step37=kill",
    "lnc": "2",
    "comm_threshold": "0.5",
    "overlap": "none",
    "bucket_mib": "25",
    "optimize": "2",
    "streams": "2",
    "stochastic_rounding": True,
    "seed": "7",
    "check": "race=warn,overlap=off",
    "check_nan": True,
    "schedule": "as-written",
    "band": True,
    "set": "chip.dma.engine_bandwidth=30GBps",
    "checkpoint": "kept",
    "every": "5",
    "keep": "2",
}
TOGETHER = [name for name in OTHER if name != "no_cache"]  # which excludes a cache


def options(name: str) -> list[str]:
    """The words of a command line that tell a setting its other value."""
    value, option = OTHER[name], SETTINGS[name].option
    return [option] if value is True else [option, str(value)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.toml").write_text(RULES)
    return tmp_path


@pytest.fixture
def process(monkeypatch):
    """This process, whose settings are put back afterwards."""
    monkeypatch.setattr(checks, "_configured", {})
    monkeypatch.setattr(policy, "_configured", [])
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_every_setting_has_another_value_here():
    assert list(OTHER) == list(SETTINGS)


@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if each.option])
def test_the_command_line_tells_every_setting_that_has_an_option(name):
    plain = Settings.resolved({}, parsed(["run", "train.py"]))
    told = Settings.resolved({}, parsed(["run", *options(name), "train.py"]))
    differing = {field for field in SETTINGS if getattr(told, field) != getattr(plain, field)}
    assert differing == {name}


@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if each.variable and not each.late])
def test_the_environment_says_the_same_as_the_command_line_which_wins(name):
    setting = SETTINGS[name]
    there = {setting.variable: OTHER[name]}
    assert said(name, there) == setting.read(OTHER[name]) != setting.default
    assert said(name, {setting.variable: ""}) == said(name, {})
    if setting.option:
        args = parsed(["run", *options(name), "train.py"])
        assert said(name, {}, args) == said(name, there)
        assert said(name, {setting.variable: "x"}, args) == said(name, there)


def settings(*names: str) -> Settings:
    """The settings of a run on trn2, with the other values of some."""
    variables = {SETTINGS[name].variable: OTHER[name] for name in names if not SETTINGS[name].option}
    words = [word for name in names if SETTINGS[name].option for word in options(name)]
    start = [] if "target" in names else ["--target", "trn2.48xlarge"]
    return Settings.resolved(variables, parsed(["run", *start, *words, "train.py"]))


def effects(told: Settings) -> dict[str, object]:
    """What a process has of settings: its session as it is told to ranks, and what holds for it as a whole."""
    told.hold()
    session = from_settings(told)
    kept = checkpoint_plan.plan({"TRNLAB_CHECKPOINT": "kept", **os.environ})
    return {
        "session": session.settings_to_send(),
        "checks": checks.configured(),
        "policy": policy.configured(),
        "plan": kept,
    } | {"kept": os.environ.get("TRNLAB_CHECKPOINT")}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_setting_reaches_the_session_or_the_process(name, folder, process):
    plain = effects(settings())
    assert effects(settings(name)) != plain


def test_another_session_does_as_it_is_told_in_everything(folder):
    first = from_settings(settings(*TOGETHER))
    other = Session(first.target)
    other.adopt(first.settings_to_send())
    assert other.settings_to_send() == first.settings_to_send()


def test_the_record_goes_through_json(folder):
    told = settings(*TOGETHER)
    assert Settings.of_record(json.loads(json.dumps(told.record()))) == told


def test_zero_is_a_value_and_no_silence():
    args = parsed(["run", "--comm-threshold", "0", "train.py"])
    assert Settings.resolved({"TRNLAB_COMM_THRESHOLD": "0.7"}, args).comm_threshold == 0.0


def test_no_stochastic_rounding_is_said_too():
    args = parsed(["run", "--no-stochastic-rounding", "train.py"])
    assert Settings.resolved({}, args).stochastic_rounding is False


def test_a_share_that_is_none_is_refused_wherever_it_is_said():
    for command in ("run", "estimate"):
        with pytest.raises(UsageError, match="TRN192"):
            Settings.resolved({}, parsed([command, "--comm-threshold", "-1", "train.py"]))


def test_what_is_kept_beside_programs_lies_in_the_first_folder_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TRNLAB_CACHE", f"s3://team/cache,{tmp_path / 'mine'}")
    assert kept_folder() == tmp_path / "mine" == Settings.resolved(os.environ).folder
    monkeypatch.setenv("TRNLAB_CACHE", "s3://team/cache")
    assert kept_folder() == tmp_path / "trnlab"
