# SPDX-License-Identifier: Apache-2.0
"""Where tiles do not fit, only passes that take room in that memory are left out."""

from __future__ import annotations

from trnlab import chips, policy
from trnlab.isa.base import Memory
from trnlab.lang import allocation
from trnlab.program import Builder, passes
from trnlab.program.passes import Pass


def test_passes_that_take_no_room_in_the_full_memory_stay(monkeypatch):
    """SBUF is too small as long as the first pass runs; the second, which takes PSUM, runs in both rounds."""
    ran = []
    both = {
        "reuse": Pass(lambda draft: ran.append("reuse"), takes_room=(Memory.SBUF,)),
        "forward": Pass(lambda draft: ran.append("forward"), takes_room=(Memory.PSUM,)),
    }
    monkeypatch.setattr(passes, "PASSES", both)
    full = allocation.FullError(Memory.SBUF, allocation.DoesNotFitError(allocation.Demand(0, "t", 1, 0, 0), []), 0)
    monkeypatch.setattr(allocation._Fitting, "_place", lambda self: full if ran == ["reuse", "forward"] else None)
    allocation.finished(Builder("nothing", chips.get("trn2")), {}, policy.SCHEDULED)
    assert ran == ["reuse", "forward", "forward"]
