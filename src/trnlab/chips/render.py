# SPDX-License-Identifier: Apache-2.0
"""Chips as text, for `trnlab chips`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from trnlab.chips.catalog import NAMES, TARGETS, get
from trnlab.chips.figures import figures
from trnlab.chips.spec import FEATURES, Chip, Confidence, Figure
from trnlab.units import format_bytes, format_count

_SCALED: dict[str, Callable[[float], str]] = {
    "byte": format_bytes,
    "byte/s": lambda value: f"{value / 1e9:.4g} GB/s",
    "Hz": lambda value: f"{value / 1e9:.4g} GHz",
}


def overview() -> str:
    """One line per chip and per instance type."""
    lines = ["chips (one core)"]
    for name in NAMES:
        chip = get(name)
        lines.append(
            f"  {name:<6} {chip.title:<28} SBUF {format_bytes(chip.sbuf.bytes_per_partition.value)} x 128, "
            f"HBM {show(chip.hbm.capacity)} at {show(chip.hbm.bandwidth)}, "
            f"bf16 {chip.peak_flops('bfloat16') / 1e12:g} TFLOP/s"
        )
    lines += ["", "instances"]
    for target in TARGETS.values():
        price = target.price
        cost = f"${price.usd_per_hour:.4g}/h {price.kind}" if price else "no public price"
        lines.append(f"  {target.name:<15} {target.chips:>2} x {target.chip.name:<5} {target.cores:>3} cores  {cost}")
    return "\n".join(lines)


def describe(chip: Chip, *, only_assumed: bool = False) -> str:
    """All figures of a chip, or the assumed ones, each with how it is known and where from."""
    table = [(path, f) for path, f in figures(chip) if not only_assumed or f.confidence is Confidence.ASSUMED]
    counts = Counter(figure.confidence for _, figure in figures(chip))
    known = ", ".join(f"{counts[c]} {c.value}" for c in Confidence)
    lines = [f"{chip.name}: {chip.title}", f"{sum(counts.values())} figures: {known}", ""]
    width = max((len(path) for path, _ in table), default=0)
    for path, figure in table:
        lines.append(f"{path:<{width}}  {show(figure):>18}  {figure.confidence.value:<10}  {figure.source}")
    if not only_assumed and chip.features:
        lines += ["", "features"]
        lines += [f"  {name:<22} {text}" for name, text in FEATURES.items() if chip.has(name)]
    return "\n".join(lines)


def show(figure: Figure) -> str:
    """The value with its unit, for people."""
    scaled = _SCALED.get(figure.unit)
    if scaled is not None:
        return scaled(figure.value)
    text = format_count(figure.value) if figure.value >= 1e6 else f"{figure.value:g}"
    return f"{text} {figure.unit}"
