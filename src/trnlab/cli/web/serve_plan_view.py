# SPDX-License-Identifier: Apache-2.0
"""Instances that serve a model: each address is a command line of `trnlab serve-plan`."""

from __future__ import annotations

from trnlab import chips
from trnlab.cli.web.plan_view import STACKS, named
from trnlab.cli.web.questions import Asked, QuestionView, options
from trnlab.cli.web.shell import choice, field, form, slider
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.work import Words
from trnlab.fleet.gpus.catalogue import instances
from trnlab.fleet.models.configurations import catalogue

ABOUT = "Choose a model, the requests, and where they are answered: how many instances, how soon, for how much."
_DEFAULTS = {"model": "gpt2", "target": "inf2.xlarge", "prompt": "512", "output": "128", "stack": "ours"}
_OPTIONS = (
    *("target", "beside", "prompt", "output", "qps", "p99", "p99_request", "policy", "batch", "ranks", "weights"),
    "stack",
)


def words_of(site: ServedSite, asked: Asked) -> Words:
    """The command line of an address. Raises UsageError (TRN854) for a model that has no name."""
    said = {name: asked.get(name, "") or _DEFAULTS.get(name, "") for name in _OPTIONS}
    return ("serve-plan", *options(said), f"--cache={site.cache}", "--", named(asked.get("model", "")))


def _form(site: ServedSite, asked: Asked) -> str:
    get = {**_DEFAULTS, **asked}
    proposed = "".join(f'<option value="{name}"></option>' for name in (*chips.TARGETS, *instances()))
    fields = [
        choice("model", "Model", get["model"], [(name, name) for name in catalogue()]),
        field("target", "Instances, with commas between", get["target"], list="instances", required="required"),
        field(
            "beside", "Others beside", asked.get("beside", ""), list="instances", placeholder="p5.48xlarge,g6e.xlarge"
        ),
        choice("weights", "Weights", asked.get("weights", ""), [("", "bf16"), ("fp8", "fp8"), ("int8", "int8")]),
        choice("policy", "First", asked.get("policy", ""), [("", "prefill"), ("turns", "in turns")]),
        choice("stack", "Stack", get["stack"], STACKS),
    ]
    sliders = [
        slider("prompt", "Tokens of a prompt", get["prompt"], "power", 5, 15),
        slider("output", "Tokens of an answer", get["output"], "power", 3, 12),
        slider("qps", "Requests a second", asked.get("qps", ""), "power", 0, 10, "1"),
        slider("p99", "99 of 100 have their first token within", asked.get("p99", ""), "seconds", 1, 30, "2s"),
        slider("p99_request", "and the last one within", asked.get("p99_request", ""), "seconds", 1, 120, "whenever"),
        slider("batch", "Requests that decode together", asked.get("batch", ""), "power", 0, 10, "chosen"),
        slider("ranks", "Ranks of a copy of the model", asked.get("ranks", ""), "power", 0, 7, "all are tried"),
    ]
    box = f'<fieldset><legend>Move and see</legend><div class="sliders">{"".join(sliders)}</div></fieldset>'
    listed = f'<datalist id="instances">{proposed}</datalist>'
    return form("/serve-plan", [*fields, box], "Plan", data_question="yes") + listed


VIEW = QuestionView("serve-plan", "/serve-plan", "Plan serving", ABOUT, _form, words_of, needs="model")
