# SPDX-License-Identifier: Apache-2.0
"""Kernels: those that runs called, benches that were kept, and files of kernels that can be judged and looked into.

The code of a kernel runs only where somebody presses the button: an address alone runs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trnlab import chips, documents
from trnlab.bench.document import ladder
from trnlab.cli.web.folders import BENCH, called, walked
from trnlab.cli.web.questions import SCRIPT, asking_first, cancelled, options, part
from trnlab.cli.web.shell import View, address, choice, field, form
from trnlab.cli.web.site import ServedSite
from trnlab.cli.web.source import NAMES
from trnlab.cli.web.work import Words
from trnlab.documents import Document, Note, Part, Section, Table
from trnlab.errors import RunError, UsageError, did_you_mean
from trnlab.files import json_of
from trnlab.profile.names import nice_time
from trnlab.quoting import markup as escape
from trnlab.storage import plain_files
from trnlab.units import PS_PER_S

LARGEST = 1 << 24  # bytes of a bench that is read
HEAD = 1 << 16  # of a file that may have a kernel
SHOWN = 40  # kernels of runs, and benches
SEED = "0"  # of inputs, so that an address has one answer
Asked = Mapping[str, str]


def kernels(site: ServedSite, asked: Asked) -> View:
    """What there is, and a form that judges."""
    files, names = _files(site), [asked.get(name, "") for name in ("kernel", "reference")]
    head = "<header><p class='over'>trnlab bench</p><h1>Kernels</h1></header>"
    before = head + _form(asked, files)
    words = words_of(site, asked) if names[0] else None
    found = asking_first(site, "kernels", "/kernels", before, words, "Choose kernels, and press the button.")
    rest = documents.body(Document("", [*_benches(site), *_of_runs(site)]))
    return View("kernels", found.body + rest, [*found.scripts, SCRIPT, *NAMES], here="/kernels")


def kernels_part(site: ServedSite, asked: Asked) -> Mapping[str, Any]:
    """The judgement, or how far it is."""
    return part(site, words_of(site, asked))


def kernels_cancel(site: ServedSite, asked: Asked) -> Mapping[str, Any]:
    """Stop it."""
    return cancelled(site, words_of(site, asked))


def words_of(site: ServedSite, asked: Asked) -> Words:
    """The command line of an address. Raises UsageError (TRN854) for a file that is none of the site's."""
    files = _files(site)
    chosen = [str(_file(files, name)) for name in asked.get("kernel", "").split(",") if name]
    said = {"target": asked.get("target", ""), "seed": SEED}
    if asked.get("reference"):
        said["reference"] = str(_file(files, asked["reference"]))
    inputs = [f"--input={each.strip()}" for each in asked.get("inputs", "").split(";") if each.strip()]
    command = "timeline" if asked.get("show") == "timeline" else "bench"
    return (command, *options(said), *inputs, "--", *chosen)


def _file(files: Mapping[str, Path], name: str) -> Path:
    if name not in files:
        raise UsageError(
            f"there is no kernel {name!r} here",
            code="TRN854",
            got=name,
            limit=f"{len(files)} files",
            remedy=did_you_mean(name, files, "start `trnlab ui` with the folder that has it"),
        )
    return files[name]


def _files(site: ServedSite) -> dict[str, Path]:
    """Files of Python that speak of NKI, and those that may be references beside them."""
    found = {}
    for root in site.folders:
        for folder, names in walked(root, 2):
            for name in (n for n in names if n.endswith(".py")):
                path = folder / name
                try:
                    head = plain_files.read(path, size=HEAD)
                except OSError:
                    continue
                if b"nki" in head or b"def inputs(" in head or b"def reference(" in head:
                    found[called(path, root, site.folders)] = path
    return found


def _form(asked: Asked, files: Mapping[str, Path]) -> str:
    proposed = "".join(f'<option value="{escape(name)}"></option>' for name in files)
    shows = [("", "ladder"), ("timeline", "timeline and source of the first")]
    fields = [
        field("kernel", "Kernels, with commas between", asked.get("kernel", ""), list="files", required="required"),
        field("reference", "Reference", asked.get("reference", ""), list="files", placeholder="none: timed only"),
        field(
            "inputs", "Inputs, with semicolons between", asked.get("inputs", ""), placeholder="float32[512,512]; 1e-5"
        ),
        choice("target", "Chip", asked.get("target", ""), [("", "that of kernels"), *((n, n) for n in chips.NAMES)]),
        choice("show", "Show", asked.get("show", ""), shows),
    ]
    listed = f'<datalist id="files">{proposed}</datalist>'
    return form("/kernels", fields, "Judge", data_question="press") + listed


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
