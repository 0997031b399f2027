# SPDX-License-Identifier: Apache-2.0
"""What share of their peaks accelerators reach in training, as published: by class, accelerator, format, size.

Between sizes that were published shares lie on a line over the logarithm of the parameters; the band is what was
published near there, never less than the spread that runs of one size show among themselves. Where nothing was
published for a pair of class and accelerator, there is no figure: only a band, with the assumption that makes it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from statistics import median

from trnlab.fleet.gpus import efficiency
from trnlab.fleet.gpus.catalogue import Accelerator, accelerators
from trnlab.fleet.layers.sizes import Experts
from trnlab.fleet.models.encoder_decoder import EncoderDecoderModel
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.models.unpartitioned import UnpartitionedModel

SAME_SIZE = 1.2  # parameters within this factor are one size
LIKE = 10.0  # parameters within this factor say something of a size, where nothing nearer is published
NOTHING = (
    1e-5  # of the peak: what a size may reach of which nobody published anything; small steps only start kernels
)
BEYOND = 3.0  # times the largest size, or a part of the smallest: as far as what was published is taken to hold

NAMES = {
    "decoder": "a decoder",
    "encoder": "an encoder",
    "experts": "a model of experts",
    "pair": "an encoder with a decoder",
    "vision": "a vision transformer",
    "convolution": "a convolutional network",
    "diffusion": "a U-Net of a diffusion model",
    "tables": "a network with tables of embeddings",
}
RELATED = {
    "vision": ("vision", "encoder"),
    "encoder": ("encoder", "vision"),
    "pair": ("encoder", "decoder"),
}  # the same blocks, with or without a mask
TWINS = {"h200": "h100", "a100-40": "a100-80", "a100-80": "a100-40"}  # the same processor with another memory


@dataclass(frozen=True)
class PublishedUtilisation:
    """A published run."""

    kind: str
    accelerator: str
    form: str
    parameters: float  # that a token meets
    count: int  # accelerators
    mfu: float  # share of the dense peak
    tag: str
    source: str


@dataclass(frozen=True)
class Utilisation:
    """The share of its peak that an accelerator reaches in trainings of a kind."""

    value: float | None  # None where nothing was published for the pair
    low: float
    high: float
    basis: str  # what value and band lean on
    anchors: tuple[PublishedUtilisation, ...] = ()

    @property
    def published(self) -> bool:
        """Whether there is more than an assumption."""
        return self.value is not None


@cache
def anchors() -> tuple[PublishedUtilisation, ...]:
    """All that are known."""
    data = tomllib.loads(files(__package__).joinpath("anchors.toml").read_text("utf-8"))
    return tuple(anchor for group in data["group"] for anchor in _of_group(group))


def _of_group(group: dict[str, object]) -> Iterable[PublishedUtilisation]:
    kind, name, form = str(group["class"]), str(group["accelerator"]), str(group["form"])
    peak = accelerators()[name].peak(form)
    tag, source = str(group["tag"]), str(group["source"])
    found: list[tuple[float, float, float]] = []
    for n, layers, hidden, sequence, count, tokens in _rows(group, "throughput"):
        attention = 12.0 * layers * hidden * sequence * (0.5 if kind == "decoder" else 1.0)
        found.append((n, count, (6.0 * n + attention) * tokens / peak))
    found += [(n, count, mfu) for n, count, mfu in _rows(group, "mfu")]
    found += [(n, count, flops * 1e12 / peak) for n, count, flops in _rows(group, "flops")]
    for n, count, mfu in found:
        yield PublishedUtilisation(kind, name, form, n, int(count), mfu, tag, source)


def _rows(group: dict[str, object], name: str) -> list[list[float]]:
    rows = group.get(name, [])
    assert isinstance(rows, list)
    return rows


def class_of(model: Model) -> str:
    """decoder, experts, encoder, pair, vision, or what a model says that is no stack of blocks."""
    if isinstance(model, EncoderDecoderModel):
        return "pair"
    if isinstance(model, UnpartitionedModel) and model.kind:
        return model.kind
    blocks = [block for _, block in model.stacks]
    if any(isinstance(block.network, Experts) for block in blocks):
        return "experts"
    if model.patch:
        return "vision"
    return "decoder" if all(block.attention.causal for block in blocks) else "encoder"


def utilisation(kind: str, accelerator: Accelerator, form: str, parameters: float) -> Utilisation:
    """Utilisation of a model of a class with so many parameters that a token meets."""
    same = [a for a in anchors() if (a.kind, a.accelerator, a.form) == (kind, accelerator.name, form)]
    if not same:
        return _assumed(kind, accelerator, form, parameters)
    sizes = _sizes(same)
    if not sizes[0][0].parameters / BEYOND <= parameters <= sizes[-1][0].parameters * BEYOND:
        return _assumed(kind, accelerator, form, parameters)
    below = max((s for s in sizes if s[0].parameters <= parameters), key=_size, default=sizes[0])
    above = min((s for s in sizes if s[0].parameters >= parameters), key=_size, default=sizes[-1])
    value, used = _between(below, above, parameters), tuple(dict.fromkeys([*below, *above]))
    low = min(*(a.mfu for a in used), value * (1 - spread()))
    high = max(*(a.mfu for a in used), value * (1 + spread()))
    return Utilisation(value, low, min(high, 1.0), _basis(used, parameters), used)


def _sizes(found: Sequence[PublishedUtilisation]) -> list[list[PublishedUtilisation]]:
    """Anchors of one size together, smallest first."""
    groups: list[list[PublishedUtilisation]] = []
    for anchor in sorted(found, key=lambda a: a.parameters):
        if groups and anchor.parameters <= groups[-1][0].parameters * SAME_SIZE:
            groups[-1].append(anchor)
        else:
            groups.append([anchor])
    return groups


def _size(group: Sequence[PublishedUtilisation]) -> float:
    return group[0].parameters


def _between(
    below: Sequence[PublishedUtilisation], above: Sequence[PublishedUtilisation], parameters: float
) -> float:
    first, last = median(a.mfu for a in below), median(a.mfu for a in above)
    if _size(below) == _size(above):
        return first
    share = math.log(parameters / _size(below)) / math.log(_size(above) / _size(below))
    return first + share * (last - first)


@cache
def spread() -> float:
    """How far runs of one size on one accelerator lie from their median: the 80th percentile of all that differ."""
    key = lambda a: (a.kind, a.accelerator, a.form)  # noqa: E731
    off = []
    for _, found in groupby(sorted(anchors(), key=key), key=key):
        for size in _sizes(list(found)):
            middle = median(a.mfu for a in size)
            off += [abs(a.mfu / middle - 1) for a in size if a.mfu != middle]
    return sorted(off)[int(0.8 * (len(off) - 1))]


def _assumed(kind: str, accelerator: Accelerator, form: str, parameters: float) -> Utilisation:
    """Where nothing is published: as large a part of the best product as the same class reaches elsewhere."""
    best = efficiency.product(accelerator, form).share
    others = _others(kind, accelerator, form, parameters)
    shares = [a.mfu / efficiency.product(accelerators()[a.accelerator], a.form).share for a in others]
    where = ", ".join(sorted({f"{NAMES[a.kind]} on {a.accelerator} in {a.form}" for a in others}))
    text = (
        f"nothing is published for {NAMES[kind]} of {_count(parameters)} parameters on {accelerator.name} in {form}: "
        f"assumed to reach as much of its best product ({best:.0%} of the peak) as {where}"
    )
    low, high = min(shares) * best * (1 - spread()), max(shares) * best * (1 + spread())
    if not any(_like(a, parameters) for a in others):
        low = NOTHING
        text += "; no run of about this size was published anywhere, so that it may be next to nothing"
    return Utilisation(None, low, min(high, best), text, tuple(others))


def _others(kind: str, accelerator: Accelerator, form: str, parameters: float) -> list[PublishedUtilisation]:
    """What is nearest to a pair of which nothing is known: its twin; its class at about this size; its class; all."""
    mine = [a for a in anchors() if a.kind in RELATED.get(kind, (kind,))]
    like = [a for a in mine if _like(a, parameters)]
    twin = [a for a in like if a.accelerator == TWINS.get(accelerator.name) and a.form == form]
    return twin or like or mine or list(anchors())


def _like(anchor: PublishedUtilisation, parameters: float) -> bool:
    return parameters > 0 and abs(math.log(anchor.parameters / parameters)) <= math.log(LIKE)


def _basis(used: Sequence[PublishedUtilisation], parameters: float) -> str:
    sizes = sorted({a.parameters for a in used})
    text = f"published for {', '.join(map(_count, sizes))} on {min(a.count for a in used)}"
    most = max(a.count for a in used)
    text += f" to {most}" if most > min(a.count for a in used) else ""
    return text + " accelerators: " + "; ".join(dict.fromkeys(f"{a.source} ({a.tag})" for a in used))


def _count(parameters: float) -> str:
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{name}"
    return f"{parameters:.0f}"
