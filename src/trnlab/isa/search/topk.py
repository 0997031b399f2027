# SPDX-License-Identifier: Apache-2.0
"""The K largest of the elements that sixteen partitions hold, with their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import SBUF_ONLY, Array, Arrays, Engine, Instruction, Operand, OperandSpec, Work

CORE = 16
SHORTEST, LONGEST, MOST = 8, 65536, 32768


@register
class Topk(Instruction):
    """The K largest of the first n elements of each sixteen partitions, in ascending order, and their places.

    A group is one list, in the layout of a snake: element e on partition e % 16 of the group, column e // 16; the
    results lie the same way, the first K places of the snake. Everything else in val_dst and idx_dst stays as it is.
    Of equal values the ones with the smaller places are kept, and stand first; NaN counts as minus infinity (both
    assumed).
    """

    name = "topk"
    opcode = 50
    engines = (Engine.GPSIMD,)
    operands = (
        OperandSpec("val_dst", "dst", SBUF_ONLY, rw=True, shape=("P", "K"), dtypes=frozenset({"bfloat16"})),
        OperandSpec("idx_dst", "dst", SBUF_ONLY, rw=True, shape=("P", "K"), dtypes=frozenset({"uint32"})),
        OperandSpec("src", "src", SBUF_ONLY, dtypes=frozenset({"bfloat16"})),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"n": SHORTEST}
    required = ("val_dst", "idx_dst", "src", "n")
    sizes: ClassVar[Mapping[str, int]] = {"K": MOST - 1}
    multiples: ClassVar[Mapping[str, int]] = {"P": CORE}
    limits = ("8 <= n < 65536, K <= n, and F holds ceil(n / 16) columns",)
    source = "nki.isa.topk; the snake of the results from the kernels of aws-neuron/nki-library that use it"
    example = """
        x, best = nl.ones((128, 512), nl.bfloat16), nl.ndarray((128, 16), nl.bfloat16)
        where = nl.ndarray((128, 16), nl.uint32)
        nisa.topk(val_dst=best, idx_dst=where, src=x, n=16)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """n is possible, and src and the results fit to it."""
        n = attrs["n"]
        if not SHORTEST <= n < LONGEST or ops["val_dst"].free > n:
            self.refuse(
                "n is not a length it can be",
                limit=f"{SHORTEST}..{LONGEST - 1}, and at least K",
                got=n,
                chip=chip,
                remedy="pad the list",
                code="TRN411",
            )
        if ops["src"].free * CORE < n:
            self.refuse(
                "src holds fewer than n elements",
                limit=f"{-(-n // CORE)} columns",
                got=ops["src"].free,
                chip=chip,
                remedy="make src wider, or n smaller",
                code="TRN409",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Group after group."""
        lanes = arrays["src"].shape[0]
        src = arrays["src"].reshape(lanes, -1)
        values, places = (arrays[name].reshape(lanes, -1).copy() for name in ("val_dst", "idx_dst"))
        k = values.shape[1]
        rows, columns = np.arange(k) % CORE, np.arange(k) // CORE
        for first in range(0, lanes, CORE):
            snake = src[first : first + CORE].T.reshape(-1)[: attrs["n"]]
            rank = np.where(np.isnan(snake), np.float32(-np.inf), snake)
            descending = np.argsort(-rank, kind="stable")[:k]
            chosen = descending[np.argsort(rank[descending], kind="stable")]
            values[first + rows, columns] = snake[chosen]
            places[first + rows, columns] = chosen
        results = {"val_dst": values, "idx_dst": places}
        return {name: result.reshape(arrays[name].shape) for name, result in results.items()}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """n elements, m = K results."""
        src = ops["src"]
        return Work("gpsimd.topk", attrs["n"], ops["val_dst"].free, src.partitions, 4, "mixed")
