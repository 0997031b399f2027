# SPDX-License-Identifier: Apache-2.0
"""What decides a compilation, as a key for machines and as labelled parts for people.

The key is a digest over the canonical graph, the chip with all its figures, the options, and the compiler's version.
The parts say the same in words, so that two fingerprints can be compared: which input, constant or option changed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from trnlab import chips
from trnlab.graph.canonical import Difference, canonical_hash
from trnlab.graph.ir import Graph, Op, Value
from trnlab.runtime.cache.version import compiler_version

MAX_SHOWN = 6
MAX_CAUSES, MAX_SIDE = 2, 40  # of a graph that is compiled again: how many are said, characters before and after
_SETTINGS = ("target", "figures of the chip", "compiler version")


@dataclass(frozen=True)
class Fingerprint:
    """The key of a program in the cache, and what it was made of."""

    key: str  # 64 hexadecimal digits
    name: str
    parts: Mapping[str, str]  # label to value, most telling first ("input x": "float32[8, 128]")

    def differences(self, old: Fingerprint) -> list[str]:
        """What changed from `old` to this, one line each, at most MAX_SHOWN; empty when the keys are equal."""
        if self.key == old.key:
            return []
        changed = self._changed(old, [label for label in {**self.parts, **old.parts} if label != "wiring"])
        return shorten(changed or ["the graph: the same ops, wired differently"])

    def settings_changed(self, old: Fingerprint) -> list[str]:
        """The differences that do not lie in the graph."""
        labels = {**self.parts, **old.parts}
        return self._changed(old, [x for x in labels if x in _SETTINGS or x.startswith("option ")])

    def _changed(self, old: Fingerprint, labels: Iterable[str]) -> list[str]:
        pairs = [(label, old.parts.get(label), self.parts.get(label)) for label in labels]
        return [f"{label}: {a or 'absent'} -> {b or 'absent'}" for label, a, b in pairs if a != b]

    def distance(self, other: Fingerprint) -> tuple[bool, int]:
        """Smaller is nearer: graphs of the same name first, then by the number of differing parts."""
        labels = {*self.parts, *other.parts}
        return self.name != other.name, sum(self.parts.get(x) != other.parts.get(x) for x in labels)


def shorten(lines: list[str]) -> list[str]:
    """The first MAX_SHOWN, and how many more there are."""
    hidden = len(lines) - MAX_SHOWN
    return lines[:MAX_SHOWN] + ([f"and {hidden} more"] if hidden > 0 else [])


def causes(settings: list[str], found: list[Difference]) -> str:
    """Why a graph is compiled again, in a line or two: the settings and inputs that changed, or else, since all that
    follows changes with them, the first outputs and ops; and how many more there are."""
    first = [*settings, *(d.brief(MAX_SIDE) for d in found if d.part == "input")]
    lines = first or [d.brief(MAX_SIDE) for d in found]
    hidden = len(lines) - MAX_CAUSES
    return "; ".join(lines[:MAX_CAUSES] + ([f"and {hidden} more"] if hidden > 0 else []))


def fingerprint(graph: Graph, chip: chips.Chip, options: Mapping[str, Any]) -> Fingerprint:
    """The fingerprint of compiling `graph` for `chip` with `options` (plain JSON values)."""
    wiring = canonical_hash(graph)
    figures = _figures(chip)
    version = compiler_version()
    request = json.dumps([wiring, chip.name, figures, options, version], sort_keys=True, allow_nan=False)
    parts = {
        **_inputs(graph),
        **_constants(graph),
        **{f"option {name}": str(value) for name, value in sorted(options.items())},
        "target": chip.name,
        "figures of the chip": figures[:12],
        "outputs": ", ".join(_type(v) for v in graph.outputs),
        **{f"ops {name}": str(count) for name, count in sorted(Counter(op.name for op in graph.ops).items())},
        "compiler version": version,
        "wiring": wiring,
    }
    return Fingerprint(hashlib.sha256(request.encode()).hexdigest(), graph.name, parts)


@lru_cache(maxsize=64)
def _figures(chip: chips.Chip) -> str:
    """A digest of all figures of a chip."""
    return hashlib.sha256(chips.to_toml(chip).encode()).hexdigest()


def _inputs(graph: Graph) -> dict[str, str]:
    return {f"input {v.name or i}": _type(v) for i, v in enumerate(graph.inputs)}


def _constants(graph: Graph) -> dict[str, str]:
    """Constants by place in the user's source where it is known, so that an edited number is named by its line."""
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for op in graph.ops:
        if op.name == "constant":
            place = f"constant at {op.loc.file}:{op.loc.line}" if op.loc else "constant"
            counts[place] += 1
            found[f"{place} #{counts[place]}" if counts[place] > 1 else place] = _value(op)
    return found


def _value(op: Op) -> str:
    array = np.asarray(op.attrs["value"])
    if array.size == 1:
        return f"{array.reshape(()).item()!r} {op.result.dtype.name}"  # its shape follows from the inputs'
    return f"{_type(op.result)} {hashlib.sha256(array.tobytes()).hexdigest()[:12]}"


def _type(value: Value) -> str:
    return f"{value.dtype.name}{list(value.shape)}"
