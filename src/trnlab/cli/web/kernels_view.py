# SPDX-License-Identifier: Apache-2.0
"""Kernels: those that runs called, benches that were kept, and files of kernels that can be judged and looked into.

The code of a kernel runs only where somebody presses the button: an address alone runs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trnlab import chips, documents
from trnlab.bench.document import ladder
from trnlab.cli.web.folders import BENCH, called, kernel_file, kernel_files, walked
from trnlab.cli.web.questions import Asked, QuestionView, options
from trnlab.cli.web.shell import address, choice, field, form
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.source import NAMES
from trnlab.cli.web.work import Words
from trnlab.documents import Document, Note, Part, Section, Table
from trnlab.errors import RunError
from trnlab.files import json_of
from trnlab.profile.names import nice_time
from trnlab.quoting import markup as escape
from trnlab.storage import plain_files
from trnlab.units import PS_PER_S

LARGEST = 1 << 24  # bytes of a bench that is read
SHOWN = 40  # kernels of runs, and benches
SEED = "0"  # of inputs, so that an address has one answer


def words_of(site: ServedSite, asked: Asked) -> Words:
    """The command line of an address. Raises UsageError (TRN854) for a file that is none of the site's."""
    command = "timeline" if asked.get("show") == "timeline" else "bench"
    return judging_words(site, asked, command)


def judging_words(site: ServedSite, asked: Asked, command: str, *more: str) -> Words:
    """A command line that records kernels of the site and holds them against a reference. more: options of it.
    Raises UsageError (TRN854) for a file that is none of the site's."""
    files = kernel_files(site.folders)
    chosen = [str(kernel_file(files, name)) for name in asked.get("kernel", "").split(",") if name]
    said = {"target": asked.get("target", ""), "seed": SEED}
    if asked.get("reference"):
        said["reference"] = str(kernel_file(files, asked["reference"]))
    inputs = [f"--input={each}" for each in split(asked.get("inputs", ""))]
    return (command, *options(said), *inputs, *more, "--", *chosen)


def split(text: str) -> list[str]:
    """What stands between semicolons."""
    return [each.strip() for each in text.split(";") if each.strip()]


def _form(site: ServedSite, asked: Asked) -> str:
    shows = [("", "ladder"), ("timeline", "timeline and source of the first")]
    fields = [
        field("kernel", "Kernels, with commas between", asked.get("kernel", ""), list="files", required="required"),
        *judging_fields(asked),
        choice("show", "Show", asked.get("show", ""), shows),
    ]
    return form("/kernels", fields, "Judge", data_question="press") + listed(site)


def judging_fields(asked: Asked) -> list[str]:
    """What a kernel is held against, what it is given, and for which chip."""
    given = asked.get("inputs", "")
    return [
        field("reference", "Reference", asked.get("reference", ""), list="files", placeholder="none: timed only"),
        field("inputs", "Inputs, with semicolons between", given, placeholder="float32[512,512]; 1e-5"),
        choice("target", "Chip", asked.get("target", ""), [("", "that of kernels"), *((n, n) for n in chips.NAMES)]),
    ]


def listed(site: ServedSite) -> str:
    """What fields propose that name a file."""
    proposed = "".join(f'<option value="{escape(name)}"></option>' for name in kernel_files(site.folders))
    return f'<datalist id="files">{proposed}</datalist>'


def _benches(site: ServedSite) -> Iterator[Section]:
    """The ladders that `trnlab bench --out` left."""
    for root in site.folders:
        places = [folder for folder, names in walked(root) if BENCH in names]
        for folder in places[:SHOWN]:
            yield Section(heading=f"Bench {called(folder, root, site.folders)}", parts=[_kept(folder / BENCH)])


def _kept(path: Path) -> Part:
    try:
        return ladder(json_of(plain_files.read(path, most=LARGEST)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        told = RunError("it is damaged", code="TRN812", got=type(error).__name__)
        return Note(f"{told.code}: {path.name} is no bench of this version ({told.got})", loud=True)


def _of_runs(site: ServedSite) -> Iterator[Section]:
    """Kernels that runs called by themselves."""
    rows: list[Sequence[str]] = []
    links = []
    for run in site.runs.all().values():
        for each in run.summary.get("kernels") or ():
            time = nice_time(each["time_s"] * PS_PER_S)
            rows.append(
                (each["name"], run.name, each["chip"], f"{each['calls']:,}", f"{each['instructions']:,}", time)
            )
            links.append(address("/timeline", {"run": run.name}))
    if rows:
        head = ("kernel", "run", "chip", "calls", "instructions", "one call")
        table = Table(rows[:SHOWN], head, (3, 4, 5), links=links)
        yield Section(heading="Kernels of runs", say="Each leads to its timeline and source.", parts=[table])


def _rest(site: ServedSite) -> str:
    return documents.body(Document("", [*_benches(site), *_of_runs(site)]))


ABOUT = "Choose kernels, and press the button."
VIEW = QuestionView(
    "bench",
    "/kernels",
    "Kernels",
    ABOUT,
    _form,
    words_of,
    needs="kernel",
    pressed=True,
    rest=_rest,
    scripts=NAMES,
    doing="Recording and judging",
)
