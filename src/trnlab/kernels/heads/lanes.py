# SPDX-License-Identifier: Apache-2.0
"""Narrow heads beside each other: one transpose turns several, and one instruction empties PSUM of them.

Engines and the PE array begin at multiples of 32 partitions, and so does a head with what goes beside it. The array
multiplies heads that lie on different rows of it at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.chips.spec import Chip
from trnlab.kernels.attention_tiles import LANE, Task, count_blocks
from trnlab.kernels.blocks import P
from trnlab.program.access import AP

LONGEST = 16  # blocks of keys whose heads lie beside each other


@dataclass(frozen=True)
class HeadLanes:
    """Narrow heads beside each other on the partitions of their transposed operands, `size` partitions each. A lane's
    first one holds -m or one, the next hold the head."""

    size: int
    depth: int

    @staticmethod
    def of(task: Task, chip: Chip) -> HeadLanes | None:
        """Those of a task, if two heads or more are beside each other and that pays."""
        size = LANE if task.depth < LANE else 2 * LANE
        # Two heads of few keys: arranging them takes longer than what it saves where two engines empty PSUM. Of long
        # sequences they fill SBUF, and save little.
        blocks = count_blocks(task.keys)
        pays = blocks <= LONGEST and not (size > LANE and blocks <= 2 and chip.has("parallel_ports"))
        return HeadLanes(size, task.depth) if task.depth < size and task.shared == 1 and pays else None

    @property
    def count(self) -> int:
        """Heads beside each other."""
        return P // self.size

    def of_head(self, tile: AP, head: int) -> AP:
        """[1 + D, tokens] of a head in [128, heads / count, tokens]."""
        first = head % self.count * self.size
        return tile[first : first + self.depth + 1, head // self.count]

    def in_tokens(self, tile: AP, heads: int) -> AP:
        """[rows, blocks, heads, size] of tokens [rows, blocks, heads and more one behind the other], as transposes
        take them."""
        return tile[:, :, : heads * self.size].split(1, heads, self.size)
