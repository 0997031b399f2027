# SPDX-License-Identifier: Apache-2.0
"""`trnlab ui` in a real browser: every view from 400 pixels on, in light and dark, by keyboard, on paper; a thousand
runs, a timeline of a million bars, a plan that is moved and one that is cancelled. Skipped without Playwright or
Chromium."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages_served import Served, serving_site
from profile_samples import big_step, really_run, round_summary

from trnlab import profile
from trnlab.cli.web import timeline_view
from trnlab.cli.web.jobs import Workplace
from trnlab.profile import Profile

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
RUNS = 1000
VIEWS = (
    "/runs",
    "/run?run=runs/real-1",
    "/run?run=runs/train-1",
    "/timeline?run=runs/real-1",
    "/compare?first=runs/real-1&second=runs/real-1",
    "/plan",
    "/serve-plan",
    "/bakeoff",
    "/goodput?chips=4096",
    "/kernels",
    "/tune",
    "/cache",
    "/checkpoints",
    "/chips?chip=trn2",
    "/instructions?name=nc_matmul",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("site")
    for n in range(RUNS):
        folder = root / "runs" / f"train-{n}"
        folder.mkdir(parents=True)
        made = round_summary(
            name=folder.name,
            started=f"2026-08-{1 + n % 28:02}T12:00:00+00:00",
            status="running" if n == 1 else "complete",
            complete=n != 1,
            loss=[4.0, 3.0, 2.0 + n / RUNS],
        )
        (folder / "summary.json").write_text(json.dumps(made))
    really_run(root / "runs" / "real-1")
    with serving_site(root, tmp_path_factory.mktemp("cache")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        named = os.environ.get("CHROMIUM", "chromium")
        chromium = shutil.which(named) or shutil.which("chromium-browser") or playwright.chromium.executable_path
        if not Path(chromium).exists():
            pytest.skip("needs Chromium: apt-get install chromium")
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


class Tab:
    """A tab that has opened the address with the token, and what its console said."""

    def __init__(self, browser: Any, served: Served, width: int = 1300, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.served = served
        self.page.goto(served.entrance)

    def open(self, path: str) -> float:
        """Go there; returns how long that took."""
        began = time.monotonic()
        self.page.goto(self.served.url + path)
        return time.monotonic() - began

    def until(self, expression: str, seconds: float = 60) -> None:
        """Wait until an expression is true; the pages' policy forbids what Playwright would do for that."""
        end = time.monotonic() + seconds
        while not self.holds(expression):
            assert time.monotonic() < end, f"{expression}: {self.page.inner_text('main')[:500]}"
            time.sleep(0.05)

    def holds(self, expression: str) -> bool:
        """Whether it is true now; a page that is just being left has no answer."""
        try:
            return bool(self.page.evaluate(expression))
        except sync_api.Error:
            return False


@pytest.fixture
def tab(browser: Any, served: Served) -> Iterator[Tab]:
    opened = Tab(browser, served)
    yield opened
    opened.page.close()
    assert not opened.said


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_a_small_window_in_light_and_dark(browser: Any, served: Served, scheme: str) -> None:
    tab = Tab(browser, served, 400, scheme)
    for path in VIEWS:
        tab.open(path)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 400, path
        ink, paper = (
            tab.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "background")
        )
        assert (sum(map(int, ink[4:-1].split(","))) > 400) is (scheme == "dark"), (path, ink, paper)
    tab.page.close()
    assert not [line for line in tab.said if "404" not in line]


def test_the_token_is_in_no_address_and_another_browser_is_refused(browser: Any, served: Served, tab: Tab) -> None:
    assert "token" not in tab.page.url
    other = browser.new_context().new_page()
    answer = other.goto(f"{served.url}/runs")
    assert answer.status == 403
    assert "TRN853" in other.inner_text("body")
    other.context.close()


def test_a_thousand_runs_are_listed_searched_and_sorted_within_a_second(tab: Tab) -> None:
    tab.open("/runs")
    assert tab.open("/runs") < 1.5  # of a busy machine; the server takes a fifth of a second
    assert "1,001 runs" in tab.page.inner_text("main")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("real-1")
    tab.until("document.querySelector('h2').textContent.startsWith('1 runs')")
    assert tab.page.url.endswith("q=real-1&sort=newest")
    tab.page.fill("input[name=q]", "")
    tab.page.select_option("select[name=sort]", "loss")
    tab.until("document.querySelector('td a')?.textContent.startsWith('runs/real-1')")


def test_views_are_reached_by_keyboard_alone(tab: Tab) -> None:
    tab.open("/runs?q=real-1")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "skip"
    tab.page.keyboard.press("Enter")
    for _ in range(4):  # search, sort, button, the run
        tab.page.keyboard.press("Tab")
    assert "run=runs" in tab.page.evaluate("document.activeElement.href")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/run?run=*")


def test_a_printed_view_has_no_navigation(tab: Tab) -> None:
    tab.open("/run?run=runs/real-1")
    tab.page.emulate_media(media="print")
    assert not tab.page.is_visible("body > nav")
    assert tab.page.is_visible("h1")
    assert len(tab.page.pdf()) > 10_000


def test_a_run_that_ends_becomes_its_report(tab: Tab, served: Served) -> None:
    folder = served.site.folders[0] / "runs" / "train-1"
    going = json.loads((folder / "summary.json").read_text())
    tab.open("/run?run=runs/train-1")
    longer = going | {"loss": [4.0, 3.0, 2.5, 2.25], "steps": 4}
    (folder / "summary.json").write_text(json.dumps(longer))
    tab.until("document.querySelector('.figures').textContent.includes('2.25')")
    shutil.copytree(served.site.folders[0] / "runs" / "real-1", folder, dirs_exist_ok=True)
    tab.until("document.querySelector('.timeline') !== null")
    (folder / "summary.json").write_text(json.dumps(going))


def test_a_timeline_keeps_its_place_and_its_line_in_the_address(tab: Tab) -> None:
    tab.open("/timeline?run=runs/real-1")
    tab.until("document.querySelector('.timeline').dataset.beside === 'yes'")
    tab.page.focus(".timeline .view")
    tab.page.keyboard.press("+")
    tab.page.keyboard.press("]")
    tab.until("/[?&]from=\\d+/.test(location.search) && /[?&]i=\\d+/.test(location.search)")
    chosen = tab.page.inner_text(".detail")
    tab.page.reload()
    tab.until("!document.querySelector('.detail').hidden")
    assert tab.page.inner_text(".detail") == chosen
    tab.page.click(".source tr.timed button")
    tab.until("/[?&]line=\\d+/.test(location.search)")
    assert "of this line" in tab.page.inner_text(".timeline output")
    assert tab.page.locator(".source tr.chosen").count() == 1


def test_a_timeline_in_a_notebook_is_moved_and_zoomed(browser: Any) -> None:
    page = browser.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.set_content(str(big_step(1000).timeline._repr_html_()))
    frame = page.frames[1]
    frame.wait_for_selector(".timeline[data-ready=yes]")
    stretch = "(() => { const t = document.querySelector('.timeline').timeline; return [t.from, t.to, t.limit]; })()"
    whole = frame.evaluate(stretch)
    assert whole[0] == 0
    assert whole[1] == whole[2] > 0
    frame.focus(".timeline .view")
    for key in ("+", "+", "ArrowRight", "c"):
        page.keyboard.press(key)
    frame.wait_for_function(f"{stretch}[0] > 0")
    closer = frame.evaluate(stretch)
    assert closer[1] - closer[0] < whole[1] / 2
    page.close()
    assert not said


def test_a_timeline_of_a_million_bars(tab: Tab, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    step = big_step(1_000_000)
    monkeypatch.setattr(profile, "load", lambda folder: Profile(folder, round_summary(), step))
    timeline_view._ended.cache_clear()
    first = tab.open("/timeline?run=runs/train-9")
    tab.until("document.querySelector('.timeline').dataset.beside === 'yes'", 120)
    again = tab.open("/timeline?run=runs/train-9")
    tab.until("document.querySelector('.timeline').dataset.beside === 'yes'", 120)
    print(f"a million bars: {first:.1f} s made, {again:.1f} s again")
    assert "1,000,000 instructions" in tab.page.inner_text("main")
    tab.page.focus(".timeline .view")
    for key in ("+", "+", "ArrowRight", "-", "c", "0"):
        tab.page.keyboard.press(key)
    assert tab.page.evaluate("document.querySelector('.timeline').timeline.slowest") < 2000
    assert again < 10
    timeline_view._ended.cache_clear()


def test_a_plan_is_moved_and_answers_from_what_is_compiled(tab: Tab) -> None:
    tab.open(
        "/plan?model=gpt2&tokens=1G&target=trn1.2xlarge&few=1&most=1&global_batch=16&stack=ours&pp=1&tp=1&zero=0"
    )
    tab.until("document.querySelector('.answer .figures') !== null", 300)
    assert "as told" not in tab.page.inner_text(".answer")
    slider = tab.page.locator("input[type=range][aria-label='Dollars an hour of an instance']")
    began = time.monotonic()
    slider.focus()
    slider.press("End")
    tab.until("document.querySelector('.answer').textContent.includes('as told')", 30)
    taken = time.monotonic() - began
    assert "price=80" in tab.page.url
    print(f"another price: {taken:.2f} s")
    assert float(tab.page.get_attribute(".answer", "data-seconds")) < 1.0
    tab.page.reload()
    tab.until("document.querySelector('.answer').textContent.includes('as told')", 30)


def test_what_is_compiled_shows_its_progress_and_can_be_cancelled(tab: Tab, served: Served) -> None:
    tab.open("/plan?model=llama3-8b&tokens=1T&target=trn2.48xlarge&few=1&most=16&stack=ours")
    tab.until("document.querySelector('.working li') !== null", 120)
    tab.page.click(".working button")
    tab.until("document.querySelector('.answer').textContent.includes('Cancelled')")
    served.site.work.cancel(("nothing",))


def test_a_question_that_nobody_asks_any_more_is_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("trnlab.cli.web.jobs.ABANDONED_S", 0.5)
    place = Workplace()
    words = ("plan", "--tokens=1T", "--target=trn2.48xlarge", f"--cache={tmp_path}", "--", "llama3-8b")
    assert place.ask(words)["state"] == "waiting"
    until = time.monotonic() + 60
    while place._jobs[words].state != "cancelled":
        assert time.monotonic() < until
        time.sleep(0.05)
    place.close()
    assert replace(place._jobs[words]).answer == {}
