# SPDX-License-Identifier: Apache-2.0
"""Training runs on fleets: layouts, memory, step time, days and dollars, from compiled programs and the fabric.

    from trnlab import fleet
    found = fleet.plan(fleet.Question(fleet.model("llama3-8b"), 1e12, ("trn1.32xlarge",), (16, 64)))
    found.chosen.bill.days

See `docs/plan.md`.
"""

from __future__ import annotations

from trnlab.fleet.models.configurations import model
from trnlab.fleet.planning.plan import Candidate, Plan, plan
from trnlab.fleet.planning.question import Question
from trnlab.fleet.report import notebooks  # noqa: F401  (registers how plans are drawn)

__all__ = ["Candidate", "Plan", "Question", "model", "plan"]
