# SPDX-License-Identifier: Apache-2.0
"""Plans in a notebook."""

from __future__ import annotations

from trnlab import documents
from trnlab.documents.notebooks import framed, shows
from trnlab.fleet.planning.plan import Plan
from trnlab.fleet.report.document import document


def _of_plan(plan: Plan) -> str:
    return framed(documents.page(document(plan)))


shows(Plan, _of_plan)
