# SPDX-License-Identifier: Apache-2.0
"""Timelines and runs in a notebook."""

from __future__ import annotations

from trnlab import documents
from trnlab.documents.notebooks import framed, shows
from trnlab.profile.data import Profile
from trnlab.profile.names import nice_time
from trnlab.profile.pages.page import document
from trnlab.profile.pages.picture import strip
from trnlab.timeline import Timeline


def _of_timeline(timeline: Timeline) -> str:
    said = f"{timeline.name} on {timeline.target}: {nice_time(timeline.total)}, {len(timeline):,} instructions"
    return strip(timeline, said)


def _of_run(profile: Profile) -> str:
    return framed(documents.page(document(profile)))


shows(Timeline, _of_timeline)
shows(Profile, _of_run)
