# SPDX-License-Identifier: Apache-2.0
"""Searches of a kernel's parameters: how far one is, with the best so far, and what it found.

As with kernels, the code of one runs only where somebody presses the button.
"""

from __future__ import annotations

from trnlab.cli.web.kernels_view import judging_fields, judging_words, listed, split
from trnlab.cli.web.questions import Asked, QuestionView, options
from trnlab.cli.web.shell import field, form
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.work import Words

ABOUT = "Choose a kernel and the values of its parameters, and press the button. What was tried is kept."


def words_of(site: ServedSite, asked: Asked) -> Words:
    """The command line of an address. Raises UsageError (TRN854) for a file that is none of the site's."""
    tried = [f"--param={each}" for each in split(asked.get("param", ""))]
    return judging_words(site, asked, "tune", *options({"budget": asked.get("budget", "")}), *tried)


def _form(site: ServedSite, asked: Asked) -> str:
    fields = [
        field("kernel", "Kernel", asked.get("kernel", ""), list="files", required="required"),
        *judging_fields(asked),
        field(
            "param",
            "Values, with semicolons between",
            asked.get("param", ""),
            placeholder="those of TUNE, or tile=128,256; buffers=1,2",
        ),
        field("budget", "Points at most", asked.get("budget", ""), "number", placeholder="1000", min="1"),
    ]
    return form("/tune", fields, "Search", data_question="press") + listed(site)


VIEW = QuestionView(
    "tune", "/tune", "Tune a kernel", ABOUT, _form, words_of, needs="kernel", pressed=True, doing="Recording points"
)
