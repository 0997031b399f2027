# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: it opens, zooms, finds, follows, and keeps its console empty; also with a million
instructions. Skipped where there is no Playwright or no Chromium: that of CHROMIUM, of the system, or Playwright's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profile_samples import big_step, measured_dump

from trnlab import documents, profile
from trnlab.profile import Profile
from trnlab.profile.pages.page import SCRIPTS, document
from trnlab.profile.pages.ranks_panel import ranks
from trnlab.runtime.analysis.lanes import together

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMELINE = "document.querySelector('.timeline').timeline"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        named = os.environ.get("CHROMIUM", "chromium")
        chromium = shutil.which(named) or shutil.which("chromium-browser") or playwright.chromium.executable_path
        if not Path(chromium).exists():
            pytest.skip("needs Chromium: apt-get install chromium, or .venv/bin/playwright install chromium")
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


class Opened:
    """A page that is open, and what its console said."""

    def __init__(self, browser: Any, path: Path, width: int = 1400, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(".timeline[data-ready]", timeout=60_000)
        self.centre()

    def centre(self) -> None:
        """Scroll the whole canvas into the window."""
        self.page.evaluate("document.querySelector('.timeline canvas').scrollIntoView({ block: 'center' })")

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.said.append(f"asked for {url}")

    def get(self, expression: str) -> Any:
        """An expression over the timeline `t`."""
        return self.page.evaluate(f"(() => {{ const t = {TIMELINE}; return {expression}; }})()")

    def until(self, condition: str) -> None:
        """Wait for a condition over the timeline `t`: events and searches take their time on a busy machine."""
        self.page.wait_for_function(f"(() => {{ const t = {TIMELINE}; return {condition}; }})()", timeout=30_000)

    def drawn(self) -> None:
        """Wait for the next picture."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.drawn()

    def point_at(self, instruction: int) -> None:
        """Move the mouse onto the bar of an instruction."""
        self.centre()
        box = self.page.locator(".timeline canvas").bounding_box()
        x, y = self.get(
            f"(({{ row, i }}) => [t.painter.x(row.start[i] + row.length[i] / 2), row.y + row.height / 2])"
            f"(t.data.where({instruction}))"
        )
        self.page.mouse.move(box["x"] + x, box["y"] + y)
        self.until(f"t.hover && t.hover.row.ref[t.hover.i] === {instruction}")


@pytest.fixture(scope="module")
def thousand(browser: Any, ran: Profile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("thousand") / "page.html"
    path.write_text(documents.page(document(replace(ran, step=big_step(1_000)))))
    return path


@pytest.fixture(scope="module")
def million(browser: Any, ran: Profile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("million") / "page.html"
    path.write_text(documents.page(document(replace(ran, step=big_step(1_000_000)))))
    return path


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_and_fits_the_window(browser: Any, run_folder: Path, width: int, scheme: str) -> None:
    opened = Opened(browser, run_folder / "report.html", width, scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    colours = opened.page.evaluate(
        """(() => {
          const canvas = document.querySelector("canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        })()"""
    )
    assert colours > 20
    assert opened.said == []


def test_a_thousand_instructions_are_zoomed_searched_and_followed(browser: Any, thousand: Path) -> None:
    opened = Opened(browser, thousand)
    _zooms(opened)
    _searches(opened)
    _follows(opened)
    assert opened.said == []


def test_a_million_instructions_are_zoomed_searched_and_followed(browser: Any, million: Path) -> None:
    opened = Opened(browser, million)
    assert opened.get("t.data.count") == 1_000_000
    _zooms(opened)
    _searches(opened)
    _follows(opened)
    assert opened.said == []


def _zooms(opened: Opened) -> None:
    """By wheel at the pointer, by keys, and back to everything by a double click."""
    total = opened.get("t.data.total")
    box = opened.page.locator(".timeline canvas").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60)
    under = opened.get(f"t.painter.time({box['width'] * 0.6})")
    opened.page.mouse.wheel(0, -60)
    opened.until(f"t.to - t.from < {total}")
    assert opened.get("t.to - t.from") == pytest.approx(total * np.exp(-0.24), rel=1e-6)
    assert opened.get(f"t.painter.time({box['width'] * 0.6})") == pytest.approx(under, rel=1e-3)
    opened.page.locator(".timeline .view").focus()
    opened.press("w", "w", "d")
    assert opened.get("t.to - t.from") == pytest.approx(total * np.exp(-0.24) * 0.49, rel=1e-6)
    opened.page.mouse.dblclick(box["x"] + box["width"] * 0.6, box["y"] + 8)
    opened.until(f"t.to - t.from === {total}")
    assert (opened.get("t.from"), opened.get("t.to")) == (0, total)


def _searches(opened: Opened) -> None:
    """By opcode, source line and op of the graph; Enter goes from match to match."""
    field, out = opened.page.locator(".timeline input"), opened.page.locator(".timeline output")
    expected = opened.get("t.data.instructions.op.filter((op) => t.data.header.ops[op][0] === 'activation').length")
    field.fill("op:activation")
    opened.until("t.found && t.mode === 'search'")
    assert out.text_content().startswith(f"{expected:,} of ")
    field.press("Enter")
    field.press("Enter")
    assert opened.get("t.data.opcode(t.instruction)") == "activation"
    assert opened.get("t.instruction") == opened.get("t.found[1]")
    assert out.text_content() == f"2 of {expected:,}"
    every = opened.get(
        "t.data.instructions.source.filter((s) => t.data.header.sources[s][0].includes('train.py:12')).length"
    )
    field.fill("line:train.py:12")
    opened.until(f"t.found.length === {every}")
    assert opened.get("t.found.every((i) => t.data.source(i)[0].includes('train.py:12'))")
    field.fill("graph:dot activation")
    opened.until(f"t.found.length === {expected}")
    field.fill("nothing has this name")
    opened.until("t.found.length === 0")
    assert out.text_content().startswith("0 of ")
    field.press("Escape")
    opened.until("t.layer === null")


def _follows(opened: Opened) -> None:
    """Point at an instruction, click it, and go back to what it waited for and forth again."""
    one = opened.get("t.data.instructions.blocker.findLastIndex((back, i) => back && t.data.barRow[i] >= 0)")
    opened.page.evaluate(f"{TIMELINE}.reveal({TIMELINE}.data.where({one}), true)")
    opened.drawn()
    opened.point_at(one)
    tip = opened.page.locator(".timeline .tip")
    assert opened.get(f"t.data.text({one})") in tip.text_content()
    assert "waited for" in tip.text_content()
    opened.page.mouse.down()
    opened.page.mouse.up()
    opened.until(f"t.instruction === {one}")
    chain = opened.get("t.chain.length")
    assert chain > 1
    assert opened.get("t.marks.reduce((a, b) => a + b)") == chain
    opened.page.locator(".timeline .view").focus()
    opened.press("b")
    before = opened.get("t.instruction")
    assert before == opened.get(f"t.data.held({one}) >= 0 ? t.data.held({one}) : t.data.blocker({one})")
    assert opened.get("t.chain.length") == chain - 1
    assert one in opened.get(f"[...t.data.waitingFor({before})]")
    assert opened.get("t.data.opcode(t.instruction)") in opened.page.locator(".timeline .detail b").text_content()
    opened.press("Escape")
    assert opened.page.locator(".timeline .detail").is_hidden()


def test_timelines_that_are_compared_move_together(browser: Any, ran: Profile, tmp_path: Path) -> None:
    other = replace(ran, summary={**ran.summary, "name": "big"}, step=big_step(1000))
    path = tmp_path / "compared.html"
    path.write_text(documents.page(profile.comparison.document(profile.compare(ran, other), (ran, other))))
    opened = Opened(browser, path)
    opened.page.wait_for_selector(".timeline:nth-of-type(1)[data-ready]")
    two = "[...document.querySelectorAll('.timeline')].map((root) => root.timeline)"
    longest = opened.page.evaluate(f"Math.max(...{two}.map((t) => t.data.total))")
    opened.page.wait_for_function(f"{two}.every((t) => t.to === {longest})")
    opened.page.evaluate(f"{two}[1].show(1000, 9_000_000)")
    assert opened.page.evaluate(f"{two}.map((t) => [t.from, t.to])") == [[1000, 9_000_000]] * 2
    assert opened.said == []


def test_a_measured_run_has_a_timeline_too(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(measured_dump()))
    profile.show_measured(path)
    opened = Opened(browser, path.with_suffix(".html"))
    assert opened.get("t.data.count") == 6
    opened.page.evaluate(f"{TIMELINE}.select(5)")
    assert opened.get("t.chain") == [5, 4, 3]
    assert opened.said == []


def test_the_keyboard_alone_reaches_every_instruction(browser: Any, run_folder: Path) -> None:
    opened = Opened(browser, run_folder / "report.html")
    opened.page.locator(".timeline .view").focus()
    opened.press("]")
    first = opened.get("t.instruction")
    opened.press("]")
    assert opened.get("t.instruction") > first
    opened.press("[", "ArrowDown")
    assert opened.get("t.selected.row.name") != "tensor"
    opened.press("c")
    assert opened.page.locator("[data-do=critical]").get_attribute("aria-pressed") == "true"
    opened.press("Escape", "/")
    assert opened.page.evaluate("document.activeElement.type") == "search"
    assert opened.said == []


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (390, "light")])
def test_sixty_four_lanes_of_ranks_are_one_canvas_that_moves(browser, tmp_path, width, scheme):
    pair = {"ps": 2_000_000, "purpose": "pipeline", "kind": "collective_permute", "pair": True}
    work = {
        "work": 20_000_000,
        "label": "stage",
        "sent": [],
        "all": False,
        "busy": [[i * 250_000, i * 250_000 + 200_000] for i in range(80)],
    }
    steps = []
    for rank in range(64):
        before = [{"meet": [rank - 1, rank], **pair}] if rank else []
        after = [{"meet": [rank, rank + 1], **pair}] if rank < 63 else []
        steps.append([*before, work, *after])
    path = tmp_path / "lanes.html"
    path.write_text(documents.page(documents.Document("lanes", [ranks(together(steps))], scripts=SCRIPTS)))
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(path.as_uri())
    tab.wait_for_selector(".ranks[data-ready]", timeout=60_000)
    lanes = "document.querySelector('.ranks').lanes"
    assert tab.evaluate(f"{lanes}.data.lanes.length") == 64
    assert tab.evaluate("document.querySelectorAll('*').length") < 60
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    whole = tab.evaluate(f"{lanes}.to - {lanes}.from")
    tab.focus(".ranks .view")
    tab.keyboard.press("+")
    assert tab.evaluate(f"{lanes}.to - {lanes}.from") == whole / 2
    tab.click(".ranks button[data-do=all]")
    assert tab.evaluate(f"{lanes}.to - {lanes}.from") == whole
    box = tab.locator(".ranks canvas").bounding_box()
    x, y = tab.evaluate(f"[{lanes}.x({lanes}.data.lanes[1].sent[0][0] + 1000000), {lanes}.top + 1.7 * {lanes}.lane]")
    tab.mouse.move(box["x"] + x, box["y"] + y)
    assert "rank 1: collective_permute, pipeline" in tab.inner_text(".ranks output")
    assert not said
    tab.close()
