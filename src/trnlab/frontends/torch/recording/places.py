# SPDX-License-Identifier: Apache-2.0
"""The user's lines behind recorded operators, gradients included, for whoever tells them: reports, checks, rules of
modules.

Autograd numbers the nodes that it makes, and an operator is recorded right after its node was made. So the number of
a node that runs leads to the operator that it is the gradient of.
"""

from __future__ import annotations

import bisect
import sys

from trnlab.frontends.torch.findings.locations import here, of_gradient
from trnlab.frontends.torch.pytorch.tensors import backward_number, node_of_backward

_MOST = 1 << 18  # lines that are remembered


class Places:
    """Lines by the numbers of autograd's nodes."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._lines: list[str | None] = []

    def here(self) -> str | None:
        """The line of the operator that is recorded now, as an entry of a formatted stack."""
        line = here(sys._getframe(1))
        node = node_of_backward()
        if node is not None and (line is None or ", layer " not in line):  # else a forward pass that is made again
            return of_gradient(self._line_of(node._sequence_nr()) or line)
        number = backward_number()
        if not self._ends or self._ends[-1] != number:
            self._ends.append(number)
            self._lines.append(line)
            if len(self._ends) > _MOST:
                del self._ends[: _MOST // 2], self._lines[: _MOST // 2]
        return line

    def _line_of(self, number: int) -> str | None:
        place = bisect.bisect_right(self._ends, number)
        return self._lines[place] if place < len(self._lines) else None
