# SPDX-License-Identifier: Apache-2.0
"""Plans with sliders: each address is a command line of `trnlab plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab import chips
from trnlab.chips.prices import Price
from trnlab.cli.web.questions import SCRIPT, asking, cancelled, options, part
from trnlab.cli.web.shell import View, choice, field, form
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.work import Words
from trnlab.errors import UsageError, did_you_mean
from trnlab.fleet.models.configurations import catalogue
from trnlab.fleet.search.layout import RECOMPUTE
from trnlab.quoting import markup as escape

Asked = Mapping[str, str]
ABOUT = (
    "Choose a model and where it is to be trained. What is compiled answers within a second; what is not is "
    "compiled, with its progress here, and can be cancelled."
)
FREE = ("", "free")
STACKS = (("ours", "ours"), ("vendor", "the vendor's"), ("both", "both"))
_ZERO = (FREE, *((str(n), f"ZeRO-{n}") for n in range(4)))
_RECOMPUTE = (FREE, *((name, name) for name in RECOMPUTE))
_DEFAULTS = {"model": "gpt2", "tokens": "10G", "target": "trn1.32xlarge", "instances": "1..4", "stack": "ours"}
# parameters that are options of `trnlab plan`, by name
_OPTIONS = ("tokens", "target", "deadline", "global_batch", "sequence", "precision", "stack")
_LAYOUT = ("tp", "pp", "zero", "recompute")


def plan(site: ServedSite, asked: Asked) -> View:
    """The form, and the plan of the address."""
    words = words_of(site, asked) if asked.get("model") else None
    head = "<header><p class='over'>trnlab plan</p><h1>Plan a training</h1></header>"
    found = asking(site, "plan", "/plan", head + _form(asked), words, ABOUT)
    return View(found.title, found.body, [*found.scripts, SCRIPT], here="/plan")


def plan_part(site: ServedSite, asked: Asked) -> Mapping[str, Any]:
    """The plan of the address, or how far it is."""
    return part(site, words_of(site, asked))


def plan_cancel(site: ServedSite, asked: Asked) -> Mapping[str, Any]:
    """Stop it."""
    return cancelled(site, words_of(site, asked))


def words_of(site: ServedSite, asked: Asked) -> Words:
    """The command line of an address. Raises UsageError (TRN854) for a model that has no name."""
    said = {name: asked.get(name, "") for name in _OPTIONS}
    said["stack"] = said["stack"] or _DEFAULTS["stack"]
    few, most = asked.get("few", ""), asked.get("most", "")
    said["instances"] = f"{few or most}..{most or few}" if few or most else ""
    said["layout"] = ",".join(f"{name}={asked[name]}" for name in _LAYOUT if asked.get(name))
    if asked.get("price"):
        said["price"] = ",".join(f"{name}={asked['price']}" for name in asked.get("target", "").split(",") if name)
    return ("plan", *options(said), f"--cache={site.cache}", "--", named(asked.get("model", "")))


def named(model: str) -> str:
    """A model of the catalogue: an address names no files. Raises UsageError (TRN854)."""
    known = list(catalogue())
    if model in known:
        return model
    raise UsageError(
        f"there is no model {model!r}",
        code="TRN854",
        got=model,
        limit=", ".join(known),
        remedy=did_you_mean(model, known, "plan a config.json with `trnlab plan FILE --page plan.html`"),
    )


def _form(asked: Asked) -> str:
    said = {**_DEFAULTS, "few": "1", "most": "4", **asked}
    target = said["target"]
    price = chips.target(target).price if target in chips.TARGETS else None
    what = [
        choice("model", "Model", said["model"], [(name, name) for name in catalogue()]),
        field("tokens", "Tokens (or samples)", said["tokens"], required="required", size="8"),
        choice("target", "Instances of", target, [(name, name) for name in chips.TARGETS]),
        choice("stack", "Stack", said["stack"], STACKS),
        choice("precision", "Precision", asked.get("precision", ""), [("", "bf16"), ("fp32", "fp32")]),
    ]
    sliders = [
        _slider("few", "Instances, at least", said["few"], "power", 0, 10),
        _slider("most", "Instances, at most", said["most"], "power", 0, 10),
        _slider("deadline", "Deadline", asked.get("deadline", ""), "days", 1, 90, "none"),
        _slider("global_batch", "Sequences of a step", asked.get("global_batch", ""), "power", 4, 14, "1024"),
        _slider("price", "Dollars an hour of an instance", asked.get("price", ""), "dollars", 1, 80, _usual(price)),
        _slider("tp", "Tensor parallel", asked.get("tp", ""), "power", 0, 7, "free"),
        _slider("pp", "Pipeline stages", asked.get("pp", ""), "power", 0, 6, "free"),
    ]
    more = [
        choice("zero", "ZeRO", asked.get("zero", ""), _ZERO),
        choice("recompute", "Recompute", asked.get("recompute", ""), _RECOMPUTE),
    ]
    inner = "".join([*sliders, *more])
    box = f'<fieldset><legend>Move and see</legend><div class="sliders">{inner}</div></fieldset>'
    return form("/plan", [*what, box], "Plan", data_question="yes")


def _usual(price: Price | None) -> str:
    return f"{price.usd_per_hour:.4g}, {price.kind}" if price is not None else "none is public"


def _slider(name: str, label: str, value: str, kind: str, least: int, most: int, otherwise: str = "") -> str:
    """A field with a slider beneath, which a script keeps together; without scripts the field is all. otherwise: what
    is taken where nothing is said."""
    told = f'data-slider="{kind}" data-least="{least}" data-most="{most}"'
    return (
        f'<label>{escape(label)}<input name="{name}" value="{escape(value)}" placeholder="{escape(otherwise)}" '
        f'autocomplete="off" {told}></label>'
    )
