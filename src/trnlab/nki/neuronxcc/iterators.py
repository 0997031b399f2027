# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.language.iterators: ranges, and what only one program of a launch grid does.

Source: uses in aws-neuron/nki-samples (3a99c91, contributed/neuron-team-kernels/helper_kernels.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from trnlab.lang.storage import refuse
from trnlab.nki.language import num_programs
from trnlab.nki.neuronxcc.loops import affine_range, sequential_range, static_range

__all__ = ["affine_range", "sequential_range", "static_range", "sync_program"]


@contextmanager
def sync_program(program_axes: Any = (), **_: Any) -> Iterator[None]:
    """A block that one program along the axes runs for all. Raises ConstraintError where there are several."""
    axes = program_axes if isinstance(program_axes, (list, tuple)) else (program_axes,)
    count = prod(num_programs(int(axis)) for axis in axes if axis is not None)
    if count > 1:
        refuse(
            "trnlab runs the programs of a grid one after the other, so that none can compute for the others",
            limit="one program along the axes",
            got=count,
            remedy="let every program compute it",
            code="TRN414",
        )
    yield
