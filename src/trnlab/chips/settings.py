# SPDX-License-Identifier: Apache-2.0
"""What-ifs as text: `chip.dma.engine_bandwidth=30GBps` changes one figure of a chip.

The unit must be one that the figure can be given in; plain numbers (ratios, counts, cycles) need none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from trnlab.chips.figures import figures, with_figures
from trnlab.chips.spec import Chip, Figure
from trnlab.errors import UsageError, nearest
from trnlab.units import GIB, KIB, MIB

PREFIX = "chip."
_SETTING = re.compile(r"(?P<path>[\w.]+)=(?P<number>[-+\d.eE]+?)\s*(?P<unit>[A-Za-z%][\w%/]*)?")
_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_FLOPS = {"": 1.0, "G": 1e9, "T": 1e12, "P": 1e15}
_SCALES: dict[str, dict[str, float]] = {
    "byte": _BYTES,
    "byte/s": {name + rate: scale for name, scale in _BYTES.items() for rate in ("ps", "/s")},
    "ns": {"ps": 1e-3, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    "Hz": {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
    "FLOP/s": {prefix + name: scale for prefix, scale in _FLOPS.items() for name in ("FLOPS", "FLOP/s", "FLOPs")},
}


def apply_settings(chip: Chip, settings: Iterable[str]) -> Chip:
    """The chip with the figures changed that `settings` name, each "chip.PATH=NUMBER UNIT".

    Raises UsageError for text that is no setting, a figure that the chip does not have, or a unit that it does not
    come in.
    """
    changes: dict[str, float] = {}
    known = dict(figures(chip))
    for setting in settings:
        path, number, unit = _split(setting)
        if path not in known:
            with_figures(chip, {path: 0.0})  # refuses it, and says which was meant
        changes[path] = _value(path, known[path], number, unit)
    return with_figures(chip, changes)


def _split(setting: str) -> tuple[str, float, str]:
    match = _SETTING.fullmatch(setting.strip())
    try:
        if match is None:
            raise ValueError
        number = float(match["number"])
    except ValueError:
        raise UsageError(
            f"{setting!r} changes no figure",
            code="TRN104",
            limit="chip.FIGURE=NUMBER UNIT",
            got=setting,
            remedy="write it as in --set chip.dma.engine_bandwidth=30GBps",
        ) from None
    return match["path"].removeprefix(PREFIX), number, match["unit"] or ""


def _value(path: str, figure: Figure, number: float, unit: str) -> float:
    """The number in the figure's own unit."""
    scales = _SCALES.get(figure.unit, {"": 1.0, figure.unit: 1.0, figure.unit + "s": 1.0})
    if figure.unit == "ratio":
        scales = {"": 1.0, "%": 0.01}
    if unit not in scales:
        raise UsageError(
            f"{path} does not come in {unit!r}" if unit else f"{path} needs a unit",
            code="TRN105",
            limit=", ".join(name for name in scales if name) or "a plain number",
            got=f"{number:g}{unit}",
            remedy=f"did you mean {number:g}{nearest(unit, scales, cutoff=0.0)}?",
        )
    value = number * scales[unit]
    if not math.isfinite(value) or value <= 0:
        raise UsageError(
            f"{path} must be more than nothing",
            code="TRN104",
            limit="a positive number",
            got=f"{number:g}{unit}",
            remedy="give a positive number",
        )
    return value
