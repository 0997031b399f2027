# SPDX-License-Identifier: Apache-2.0
"""Rule files: which module gets which format, and what is wrong with a file that says what nobody knows."""

from __future__ import annotations

import pytest

from trnlab import chips
from trnlab.errors import UsageError
from trnlab.precision import ModulePrecision, PrecisionRules, read
from trnlab.runtime.session import Session, from_environment

FILE = """
history = 8
scaling = "row"
[[rule]]
modules = ["h.0", "h.*.attn"]
format = "bf16"
[[rule]]
modules = "lm_head"
format = "fp8"
[[rule]]
modules = "h.?.mlp.*"
format = "fp8"
scaling = "tensor"
"""


def written(tmp_path, text):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return path


def test_the_first_rule_that_fits_decides_and_modules_follow_what_they_lie_in(tmp_path) -> None:
    rules = read(written(tmp_path, FILE))
    assert rules.history == 8
    for module, mode, wanted in (
        ("model.h.0.mlp.fc", "fp8", ModulePrecision("bf16", "row")),
        ("model.h.1.attn.q_proj", "fp8", ModulePrecision("bf16", "row")),
        ("model.h.1.mlp.fc", "bf16", ModulePrecision("fp8", "tensor")),
        ("model.lm_head", "fp8", ModulePrecision("fp8", "row")),
        ("model.h.1.other", "fp8", ModulePrecision("fp8", "row")),
        ("model.h.1.other", "fp32", ModulePrecision("fp32", "row")),
        ("model.wte", "fp8", ModulePrecision("bf16")),
    ):
        chosen = rules.choose(module, mode)
        assert (chosen.format, chosen.scaling if chosen.format == "fp8" else "") == (
            wanted.format,
            wanted.scaling if wanted.format == "fp8" else "",
        ), module
    assert rules.unused == ()


def test_patterns_that_fit_nothing_are_known(tmp_path) -> None:
    rules = read(written(tmp_path, FILE))
    rules.choose("model.h.0.mlp", "fp8")
    assert rules.unused == ("h.*.attn", "lm_head", "h.?.mlp.*")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[[rule]]\nmodules = 'a'\nformat = 'fp4'", "format of 'fp4'"),
        ("[[rule]]\nformat = 'fp8'", "modules = None"),
        ("[[rule]]\nmodules = 'a'\nformat = 'fp8'\nscale = 1", "'scale' in a rule"),
        ("scaling = 'block'", "scaling of 'block'"),
        ("history = 0", "history = 0"),
        ("rule = 3", "no list of rules"),
        ("[[rule", "cannot be read"),
    ],
)
def test_a_file_that_says_what_nobody_knows_is_refused(tmp_path, text, part) -> None:
    with pytest.raises(UsageError, match="TRN246") as raised:
        read(written(tmp_path, text))
    assert part in str(raised.value)
    assert "rules.toml" in str(raised.value)


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match="TRN246"):
        read(tmp_path / "none.toml")


def test_mx_is_refused_where_the_chip_has_none_and_the_way_out_is_said(tmp_path) -> None:
    for chip in ("trn1", "trn2"):
        with pytest.raises(UsageError, match="TRN245") as raised:
            Session(chips.target(chip), "mxfp8")
        assert "trn3" in str(raised.value)
        assert "fp8" in str(raised.value)
    rules = read(written(tmp_path, "[[rule]]\nmodules = 'a'\nformat = 'mxfp8'"))
    with pytest.raises(UsageError, match="TRN245"):
        Session(chips.target("trn2"), "bf16", rules)
    assert Session(chips.target("trn3"), "mxfp8").precision == "mxfp8"


def test_the_environment_chooses_mode_rules_and_rounding(tmp_path, monkeypatch) -> None:
    base = {"TRNLAB_TARGET": "trn2"}
    assert from_environment({**base, "TRNLAB_PRECISION": "fp8"}).precision == "fp8"
    assert from_environment({**base, "XLA_DOWNCAST_BF16": "1"}).precision == "bf16-all"
    rules = written(tmp_path, FILE)
    assert from_environment({**base, "TRNLAB_PRECISION_RULES": str(rules)}).rules.history == 8
    everything = Session(chips.target("trn2"), "bf16-all", PrecisionRules())
    monkeypatch.delenv("NEURON_RT_STOCHASTIC_ROUNDING_EN", raising=False)
    assert everything.rounds_stochastically
    assert not Session(chips.target("trn2")).rounds_stochastically
    monkeypatch.setenv("NEURON_RT_STOCHASTIC_ROUNDING_EN", "0")
    assert not everything.rounds_stochastically
    everything.stochastic_rounding = True
    assert everything.rounds_stochastically
