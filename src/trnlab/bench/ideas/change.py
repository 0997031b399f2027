# SPDX-License-Identifier: Apache-2.0
"""What a change to a kernel is, in words and as what makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from trnlab.chips.spec import Chip
from trnlab.isa.base import Memory
from trnlab.lang.allocation import FullError, finished
from trnlab.policy import AS_WRITTEN
from trnlab.program.passes.draft import Draft
from trnlab.program.routine import Routine

# Where rules stand, in aws-neuron/aws-neuron-sdk at 81ce03ae.
PERF_GUIDE, DMA_GUIDE = "nki/deep-dives/nki_perf_guide.rst", "nki/get-started/about/nki-dma-overview.rst"
# Nothing is left to the compiler here: what does not fit after a change is a change that cannot be made.
_NOTHING = AS_WRITTEN.with_options(spill=False, demand=False)


@dataclass(frozen=True)
class SourceEdit:
    """An engine that a call names: its line, the function's name, and the engine as an attribute of its module."""

    line: int
    call: str
    engine: str


@dataclass(frozen=True)
class KernelChange:
    """A change to a kernel."""

    name: str  # how a command line asks for it
    what: str
    why: str
    source: str  # of the rule
    how: str  # in the words of the kernel language
    options: Mapping[str, bool | int | str] = field(default_factory=dict)  # of the recording, for one made there
    # the changed instructions of others, None where there is nothing to change
    make: Callable[[Routine, Chip], Routine | None] | None = None
    edit: SourceEdit | None = None  # what it is in the source, where that is an argument of a call


def placed(draft: Draft) -> Routine | None:
    """The routine of a changed draft: tiles in SBUF have new places, those in PSUM the old ones. None: no room."""
    draft.commit()
    given = {x.id: x.address for x in draft.b.buffers if x.memory is Memory.PSUM}
    try:
        return replace(finished(draft.b, given, _NOTHING), changes=(), spills=())
    except FullError:
        return None
