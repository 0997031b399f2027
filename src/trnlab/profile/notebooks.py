# SPDX-License-Identifier: Apache-2.0
"""Timelines and runs in a notebook."""

from __future__ import annotations

import numpy as np

from trnlab import documents
from trnlab.documents import Document
from trnlab.documents.notebooks import framed, shows
from trnlab.profile.data import Profile, Step
from trnlab.profile.names import nice_time
from trnlab.profile.pages import pictures
from trnlab.profile.pages.page import SCRIPTS, document
from trnlab.timeline import Timeline


def _of_timeline(timeline: Timeline) -> str:
    said = f"{timeline.name} on {timeline.target}: {nice_time(timeline.total)}, {len(timeline):,} instructions"
    section = pictures.timeline({"script": ""}, _bare(timeline), title=said)
    return framed(documents.page(Document("", [section], name=timeline.name, scripts=SCRIPTS)))


def _bare(t: Timeline) -> Step:
    """A step of what a timeline alone knows: names of operations, lines of calls; no operands, tiles or chain."""
    sources: dict[str, int] = {}
    of_call = np.array([sources.setdefault(call.loc, len(sources)) for call in t.calls], np.int64)
    nothing = np.empty(0, np.int64)
    texts, places = tuple(op.name for op in t.ops), tuple((place, "") for place in sources)
    text, waits = t.op.astype(np.int64), np.full(len(t), -1, np.int64)
    return Step(t, texts, places, text, of_call[t.call] if len(t) else nothing, nothing, (), waits, {})


def _of_run(profile: Profile) -> str:
    return framed(documents.page(document(profile)))


shows(Timeline, _of_timeline)
shows(Profile, _of_run)
