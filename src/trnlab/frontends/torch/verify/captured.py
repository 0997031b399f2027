# SPDX-License-Identifier: Apache-2.0
"""Where a captured step is not the script's: no op is wrong, and still the loss is not what the host comes to.

The script runs once more on both sides. Each module's output on the host must be among what the chip computed in that
layer, as near as rounding lets it; the first that is not names the layer, and the first result of a function in it
(or around it, and before) that has no counterpart either names the line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from trnlab.frontends.torch.verify.against import Record, ScriptRecording, upwards
from trnlab.verify.compare import relative, within
from trnlab.verify.result import DIFFERS, OpResult

NOT_CAPTURED = "not what was captured"
REMEDY = (
    "the captured step computes something else here: report it with this line; --against compares versions of yours"
)
SAFETY, FLOOR = 8.0, 2.0**-12  # times what rounding moved the same result by, and at least


@dataclass
class LayerResults:
    """What the chip computed in one step: results by layer."""

    results: Mapping[str, Sequence[Tensor]]

    def nearest(self, record: Record) -> tuple[float, Tensor | None]:
        """The result in the record's layer, or within it, that is nearest to the record's, and how near that is."""
        best: tuple[float, Tensor | None] = (float("inf"), None)
        flat = record.value.reshape(-1).numpy()
        for layer, results in self.results.items():
            if layer != record.layer and not layer.startswith(f"{record.layer}."):
                continue
            for result in results:
                if result.numel() == flat.size:
                    distance = relative(result.reshape(-1).numpy(), flat)
                    best = min(best, (distance, result), key=lambda pair: pair[0])
        return best


def first_difference(chip: LayerResults, host: ScriptRecording, moved: ScriptRecording, step: int) -> OpResult | None:
    """The first layer of a step whose output the chip does not have; `moved`: the host with rounding thrown in."""
    for key, record in host.modules.items():
        if key[0] != step or record.gradient:
            continue
        twin = moved.modules.get(key)
        if _missing(chip, record, twin):
            functions = [r for layer in upwards(record.layer) for r in _functions(host, moved, step, layer, chip)]
            before = [r for r in functions if r.order < record.order]
            return _result(chip, min(before, key=lambda r: r.order, default=record))
    return None


def _functions(
    host: ScriptRecording, moved: ScriptRecording, step: int, layer: str, chip: LayerResults
) -> list[Record]:
    """Records of functions in a layer that the chip has no counterpart of."""
    mine, theirs = host.functions.get((step, layer), []), moved.functions.get((step, layer), [])
    pairs = zip(mine, theirs) if len(mine) == len(theirs) else ((r, None) for r in mine)
    return [r for r, twin in pairs if layer and _missing(chip, r, twin)]


def _missing(chip: LayerResults, record: Record, moved: Record | None) -> bool:
    spread = relative(moved.value.numpy(), record.value.numpy()) if moved is not None else FLOOR
    return chip.nearest(record)[0] > max(SAFETY * spread, FLOOR)


def _result(chip: LayerResults, record: Record) -> OpResult:
    distance, nearest = chip.nearest(record)
    got = record.value if nearest is None else nearest.reshape(record.value.shape)
    worst = within(np.asarray(got), record.value.numpy(), FLOOR * record.value.abs().numpy(), "float32")
    why = (
        "the nearest result in that layer on the chip is shown"
        if nearest is not None
        else "the chip has none like it"
    )
    return OpResult(
        record.step,
        0,
        record.name,
        False,
        record.place,
        tuple(record.value.shape),
        "float32",
        "captured",
        DIFFERS,
        ratio=distance / FLOOR,
        wrong=worst.wrong,
        index=worst.index,
        chip=worst.chip,
        reference=worst.reference,
        bound=worst.bound,
        error=distance,
        condition=NOT_CAPTURED,
        remedy=REMEDY,
        why=why,
    )
