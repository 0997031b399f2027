# SPDX-License-Identifier: Apache-2.0
"""Chips as text, for `trnlab chips`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from trnlab.chips.catalog import NAMES, TARGETS, get
from trnlab.chips.figures import figures
from trnlab.chips.spec import FEATURES, Chip, Confidence, Figure
from trnlab.documents import Document, Part, Section, Table
from trnlab.units import format_bytes, format_count

_SCALED: dict[str, Callable[[float], str]] = {
    "byte": format_bytes,
    "byte/s": lambda value: f"{value / 1e9:.4g} GB/s",
    "Hz": lambda value: f"{value / 1e9:.4g} GHz",
}


def overview() -> str:
    """One line per chip and per instance type."""
    lines = ["chips (one core)"]
    for name, title, sbuf, hbm, rate in _chips():
        lines.append(f"  {name:<6} {title:<28} SBUF {sbuf}, HBM {hbm}, bf16 {rate}")
    lines += ["", "instances"]
    for name, count, chip, cores, cost in _instances():
        lines.append(f"  {name:<15} {count:>2} x {chip:<5} {cores:>3} cores  {cost}")
    return "\n".join(lines)


def overview_document(leading: Callable[[str], str]) -> Document:
    """The same as a document. leading: where a page leads from a chip."""
    cores = Table(list(_chips()), ("chip", "", "SBUF", "HBM", "bf16"), links=[leading(name) for name in NAMES])
    rows, chips = list(_instances()), [target.chip.name for target in TARGETS.values()]
    rented = Table(rows, ("instance", "chips", "of", "cores", "price"), (1, 3), links=[leading(n) for n in chips])
    return Document(
        "Chips and instances",
        [Section(heading="Chips, one core", parts=[cores]), Section(heading="Instances", parts=[rented])],
        over="trnlab chips",
    )


def _chips() -> Iterator[tuple[str, str, str, str, str]]:
    for name in NAMES:
        chip = get(name)
        sbuf = f"{format_bytes(chip.sbuf.bytes_per_partition.value)} x 128"
        hbm = f"{show(chip.hbm.capacity)} at {show(chip.hbm.bandwidth)}"
        yield name, chip.title, sbuf, hbm, f"{chip.peak_flops('bfloat16') / 1e12:g} TFLOP/s"


def _instances() -> Iterator[tuple[str, str, str, str, str]]:
    for target in TARGETS.values():
        price = target.price
        cost = f"${price.usd_per_hour:.4g}/h {price.kind}" if price else "no public price"
        yield target.name, str(target.chips), target.chip.name, str(target.cores), cost


def describe(chip: Chip, *, only_assumed: bool = False) -> str:
    """All figures of a chip, or the assumed ones, each with how it is known and where from."""
    table = _figures(chip, only_assumed)
    lines = [f"{chip.name}: {chip.title}", _known(chip), ""]
    width = max((len(path) for path, *_ in table), default=0)
    for path, value, confidence, source in table:
        lines.append(f"{path:<{width}}  {value:>18}  {confidence:<10}  {source}")
    if not only_assumed and chip.features:
        lines += ["", "features"]
        lines += [f"  {name:<22} {text}" for name, text in FEATURES.items() if chip.has(name)]
    return "\n".join(lines)


def figures_document(chip: Chip, *, only_assumed: bool = False) -> Document:
    """The same as a document."""
    head = ("figure", "value", "known as", "source")
    parts: list[Part] = [Section(heading=_known(chip), parts=[Table(_figures(chip, only_assumed), head, (1,))])]
    if not only_assumed and chip.features:
        rows = [(name, text) for name, text in FEATURES.items() if chip.has(name)]
        parts.append(Section(heading="Features", parts=[Table(rows)]))
    return Document(f"{chip.name}: {chip.title}", parts, over="trnlab chips", name=chip.name)


def _figures(chip: Chip, only_assumed: bool) -> list[tuple[str, str, str, str]]:
    """Path, value, how it is known and where from."""
    kept = ((path, f) for path, f in figures(chip) if not only_assumed or f.confidence is Confidence.ASSUMED)
    return [(path, show(f), f.confidence.value, f.source) for path, f in kept]


def _known(chip: Chip) -> str:
    counts = Counter(figure.confidence for _, figure in figures(chip))
    return f"{sum(counts.values())} figures: {', '.join(f'{counts[c]} {c.value}' for c in Confidence)}"


def show(figure: Figure) -> str:
    """The value with its unit, for people."""
    scaled = _SCALED.get(figure.unit)
    if scaled is not None:
        return scaled(figure.value)
    text = format_count(figure.value) if figure.value >= 1e6 else f"{figure.value:g}"
    return f"{text} {figure.unit}"
