# SPDX-License-Identifier: Apache-2.0
"""Plans with sliders: each address is a command line of `trnlab plan`."""

from __future__ import annotations

from trnlab import chips
from trnlab.chips.prices import Price
from trnlab.cli.web.questions import Asked, QuestionView, options
from trnlab.cli.web.shell import choice, field, form, slider
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.work import Words
from trnlab.errors import UsageError, did_you_mean
from trnlab.fleet.models.configurations import catalogue
from trnlab.fleet.search.layout import RECOMPUTE

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


def _form(site: ServedSite, asked: Asked) -> str:
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
        slider("few", "Instances, at least", said["few"], "power", 0, 10),
        slider("most", "Instances, at most", said["most"], "power", 0, 10),
        slider("deadline", "Deadline", asked.get("deadline", ""), "days", 1, 90, "none"),
        slider("global_batch", "Sequences of a step", asked.get("global_batch", ""), "power", 4, 14, "1024"),
        slider("price", "Dollars an hour of an instance", asked.get("price", ""), "dollars", 1, 80, _usual(price)),
        slider("tp", "Tensor parallel", asked.get("tp", ""), "power", 0, 7, "free"),
        slider("pp", "Pipeline stages", asked.get("pp", ""), "power", 0, 6, "free"),
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


VIEW = QuestionView("plan", "/plan", "Plan a training", ABOUT, _form, words_of, needs="model")
