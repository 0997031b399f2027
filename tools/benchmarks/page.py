# SPDX-License-Identifier: Apache-2.0
"""The page of a step of a million instructions: made, opened in a headless browser, zoomed.

The times of the instructions are irregular, so that the page's data are as large as those of a real step.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import lines
from benchmarks.timing import mixed_routine
from trnlab import chips, documents
from trnlab.documents import Document
from trnlab.numerics.dtypes import float32
from trnlab.profile.data import Step, step_of
from trnlab.profile.pages import pictures
from trnlab.profile.pages.page import SCRIPTS
from trnlab.program import Call, Program, ProgramTensor
from trnlab.runtime.analysis.details import details
from trnlab.sim.timing import time_program

INSTRUCTIONS = 1_000_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
# The time of each frame of a zoom from the whole step to single instructions and of a pan through it, in ms.
FRAMES = """() => {
  const t = document.querySelector(".timeline").timeline, total = t.data.total, frames = [];
  const frame = (from, to) => {
    [t.from, t.to] = [from, to];
    const start = performance.now();
    t.draw();
    frames.push(performance.now() - start);
  };
  frame(0, total);
  for (let n = 0; n < 60; n++) frame(total * 0.37 * (1 - 0.8 ** n), total * (0.37 + 0.63 * 0.8 ** n));
  for (let n = 0; n < 60; n++) frame(total * 0.01 * n, total * (0.01 * n + 0.2));
  return frames.slice(1);
}"""


def irregular(step: Step) -> Step:
    """The step with every time a little later, by amounts that grow at random."""
    t, rng = step.timeline, np.random.default_rng(0)
    late = np.cumsum(rng.integers(0, 2_000, len(t)))
    columns: dict[str, Any] = {name: getattr(t, name) + late for name in ("start", "end", "begin", "done")}
    total = int(columns["done"].max()) + t.completion
    return replace(step, timeline=replace(t, total=total, **columns))


def main() -> None:
    """Measure and report."""
    chip = chips.get("trn1")
    routine = mixed_routine(chip)
    tensors = tuple(ProgramTensor(i, name, (128, 512), float32, 1 << 18, "input") for i, name in enumerate("xy"))
    calls = (Call(0, (0, 1), label="mixed"),) * -(-INSTRUCTIONS // len(routine))
    program = Program("mixed", chip.name, (routine,), tensors, calls, (0, 1), ())
    timeline = time_program(program, chip)
    step = irregular(step_of(timeline, details(program, timeline, chip)))
    text = ""

    def make() -> None:
        nonlocal text
        text = documents.page(Document("page", [pictures.timeline({"script": ""}, step)], scripts=SCRIPTS))

    made = lines.seconds(make)
    found = [lines.Line("page of 1 M instructions made", made, "s", "", None, f"{len(text) / 1e6:.1f} MB")]
    lines.report(found + (_opened(text) if shutil.which("chromium") else []))


def _opened(text: str) -> list[lines.Line]:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(text)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_selector(".timeline[data-ready]", timeout=120_000)
        marks = dict(page.evaluate("performance.getEntriesByType('mark').map((m) => [m.name, m.startTime])"))
        frames = sorted(page.evaluate(FRAMES))
        browser.close()
    ready = f"all of it after {marks['timeline-ready'] / 1e3:.2f} s"
    note = f"95th percentile; median {np.median(frames):.1f} ms, without a GPU"
    return [
        lines.at_most("  first picture in the browser", marks["timeline-drawn"] / 1e3, 3, "s", ready),
        lines.at_most("  frame while zooming and panning", float(np.quantile(frames, 0.95)), 50, "ms", note),
    ]


if __name__ == "__main__":
    main()
