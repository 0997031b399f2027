# SPDX-License-Identifier: Apache-2.0
"""What a user sees of a run: its summary in words, a page of pictures, and a trace for Perfetto.

    profile.render(folder)        # writes report.html and trace.json into the run's folder
    print(profile.show(folder))   # the answers, and where those two are
    profile.compare(profile.open_run(folder), profile.open_run(other))

Everything is read from the run's folder; nothing is simulated here.
"""

from trnlab.profile import notebooks  # noqa: F401  (registers how timelines and runs are drawn)
from trnlab.profile.compare import compare, open_run
from trnlab.profile.data import Profile, Step, load, read_summary
from trnlab.profile.pages import comparison
from trnlab.profile.pages.picture import picture
from trnlab.profile.render import REPORT, TRACE, export, render, show, show_measured, write
from trnlab.profile.summary import text

__all__ = [
    "REPORT",
    "TRACE",
    "Profile",
    "Step",
    "compare",
    "comparison",
    "export",
    "load",
    "open_run",
    "picture",
    "read_summary",
    "render",
    "show",
    "show_measured",
    "text",
    "write",
]
