# SPDX-License-Identifier: Apache-2.0
"""Bake-offs: each address is a command line of `trnlab bakeoff`."""

from __future__ import annotations

from trnlab import chips
from trnlab.cli.web.plan_view import STACKS, named
from trnlab.cli.web.questions import Asked, QuestionView, options
from trnlab.cli.web.shell import choice, field, form
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.work import Words
from trnlab.fleet.gpus.catalogue import instances
from trnlab.fleet.models.configurations import catalogue

ABOUT = "The same training on two platforms: time, dollars, energy, and how sure each figure is."
_DEFAULTS = {"model": "gpt2", "a": "trn2.48xlarge", "b": "p5.48xlarge", "stack": "ours"}
_OPTIONS = ("a", "b", "days", "batch", "precision", "stack", "porting")


def words_of(site: ServedSite, asked: Asked) -> Words:
    """The command line of an address. Raises UsageError (TRN854) for a model that has no name."""
    said = {name: asked.get(name, "") or _DEFAULTS.get(name, "") for name in _OPTIONS}
    return ("bakeoff", *options(said), f"--cache={site.cache}", "--", named(asked.get("model", "")))


def _form(site: ServedSite, asked: Asked) -> str:
    sides = [(name, name) for name in (*chips.TARGETS, *instances())]
    get = {**_DEFAULTS, **asked}
    fields = [
        choice("model", "Model", get["model"], [(name, name) for name in catalogue()]),
        choice("a", "One side", get["a"], sides),
        choice("b", "The other", get["b"], sides),
        field("days", "Days", asked.get("days", ""), placeholder="2", size="5"),
        field("batch", "Sequences of a step", asked.get("batch", ""), "number", placeholder="1024", min="1"),
        field("porting", "Days of porting", asked.get("porting", ""), placeholder="none", size="6"),
        choice("precision", "Products of the other", asked.get("precision", ""), [("", "bf16"), ("fp8", "fp8")]),
        choice("stack", "Stack", get["stack"], STACKS),
    ]
    return form("/bakeoff", fields, "Compare", data_question="yes")


VIEW = QuestionView("bakeoff", "/bakeoff", "Bake-off", ABOUT, _form, words_of, needs="model")
