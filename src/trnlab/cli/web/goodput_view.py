# SPDX-License-Identifier: Apache-2.0
"""What failures leave of a job: each address is a command line of `trnlab goodput`."""

from __future__ import annotations

from trnlab import chips
from trnlab.cli.web.plan_view import named
from trnlab.cli.web.questions import Asked, QuestionView, options
from trnlab.cli.web.shell import choice, field, form, slider
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.work import Words
from trnlab.fleet.models.configurations import catalogue
from trnlab.fleet.reliability.stores import STORES

ABOUT = "Say how many chips train together; each measure against failures is told with what it brings."
_DEFAULTS = {"chips": "4096", "target": "trn2.48xlarge"}
_OPTIONS = ("chips", "target", "parameters", "above", "step", "replica", "store", "device_hours", "spares", "power")


def words_of(site: ServedSite, asked: Asked) -> Words:
    """The command line of an address. Raises UsageError (TRN854) for a model that has no name."""
    said = {name: asked.get(name, "") for name in _OPTIONS}
    if asked.get("model"):
        said = {**said, "parameters": "", "model": named(asked["model"])}
    return ("goodput", *options(said))


def _form(site: ServedSite, asked: Asked) -> str:
    get = {**_DEFAULTS, **asked}
    stores = [("", "s3"), *((name, name) for name in STORES if name != "s3")]
    fields = [
        choice("target", "Chips of", get["target"], [(name, name) for name in chips.TARGETS]),
        choice(
            "model", "Model", asked.get("model", ""), [("", "by its size"), *((name, name) for name in catalogue())]
        ),
        field("parameters", "Parameters, without a model", asked.get("parameters", ""), placeholder="1T", size="8"),
        choice("store", "Checkpoints go to", asked.get("store", ""), stores),
        field("power", "Power that there is", asked.get("power", ""), placeholder="2GW", size="8"),
    ]
    sliders = [
        slider("chips", "Chips", get["chips"], "power", 0, 20),
        slider("above", "Goodput that is to be kept", asked.get("above", ""), "share", 50, 99, "0.9"),
        slider("step", "Seconds of a step", asked.get("step", ""), "seconds", 1, 60, "10s"),
        slider("replica", "Chips of a copy of the model", asked.get("replica", ""), "power", 0, 12, "the fewest"),
        slider(
            "device_hours",
            "Hours between failures of a chip",
            asked.get("device_hours", ""),
            "power",
            10,
            20,
            "50677",
        ),
        slider("spares", "Instances that stand by", asked.get("spares", ""), "count", 0, 400, "nearly always enough"),
    ]
    box = f'<fieldset><legend>Move and see</legend><div class="sliders">{"".join(sliders)}</div></fieldset>'
    return form("/goodput", [*fields, box], "Show", data_question="yes")


VIEW = QuestionView("goodput", "/goodput", "What failures leave", ABOUT, _form, words_of, needs="chips")
