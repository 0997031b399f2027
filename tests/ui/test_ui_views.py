# SPDX-License-Identifier: Apache-2.0
"""What the views of `trnlab ui` show: the documents of the commands."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from pages_served import Served, serving_site
from profile_samples import really_run, round_summary

from trnlab.cli.main import main
from trnlab.isa import REGISTRY

BENCH = Path(__file__).parents[1] / "bench"


def some_runs(root: Path, count: int) -> None:
    """Runs with round numbers; one of them goes on, and one is damaged."""
    for n in range(count):
        folder = root / "runs" / f"train-{n}"
        folder.mkdir(parents=True)
        status = "running" if n == 1 else "complete"
        made = round_summary(
            name=folder.name, started=f"2026-08-{1 + n % 28:02}T12:00:00+00:00", status=status, complete=n != 1
        )
        (folder / "summary.json").write_text(json.dumps(made))
    (root / "runs" / "train-2" / "summary.json").write_text("{")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("site")
    some_runs(root, 120)
    really_run(root / "runs" / "real-1")
    step = root / "kept" / "step_00000200"
    step.mkdir(parents=True)
    (step / "checkpoint").write_text("")
    with serving_site(root, tmp_path_factory.mktemp("cache")) as found:
        yield found


def test_the_list_is_searched_sorted_and_paged_by_its_address(served: Served) -> None:
    first = served.page("/runs")
    assert "121 runs, 1 of them going on" in first
    assert first.count("/run?run=") == 50
    assert served.page("/runs", page="3").count("/run?run=") == 21
    assert "real-1" in served.page("/runs", q="REAL")
    assert served.page("/runs", q="real nothing").count("/run?run=") == 0
    assert served.page("/runs", sort="name", page="x").index("real-1") > 0
    assert "TRN812" in served.page("/runs", q="train-2", sort="name")


def test_a_run_is_its_report(served: Served) -> None:
    page = served.page("/run", run="runs/real-1")
    assert "data-instructions" in page
    assert "Step time here" in page
    assert "/timeline?run=" in page
    assert served.ask("/run?run=../../etc")[0] == 404


def test_a_run_that_goes_on_is_asked_for_again_until_it_ends(served: Served) -> None:
    assert 'data-part="/run/part?run=' in served.page("/run", run="runs/train-1")
    found = served.values("/run/part", run="runs/train-1")
    assert not found["over"]
    assert "loss by step" in found["html"]
    assert served.values("/run/part", run="runs/train-3")["reload"]


def test_names_do_nothing_in_a_page(served: Served) -> None:
    page = served.page("/runs", q='"><script>alert(1)</script>')
    assert "<script>alert" not in page


def test_chips_have_their_figures_with_sources(served: Served) -> None:
    assert "trn2.48xlarge" in served.page("/chips")
    page = served.page("/chips", chip="trn2")
    assert "assumed" in page
    assert "Features" in page
    assert "documented" not in served.page("/chips", chip="trn2", assumed="yes").partition("<td>")[2]
    assert served.ask("/chips?chip=trn9")[0] == 404


def test_every_instruction_has_a_page(served: Served) -> None:
    listed = served.page("/instructions")
    assert all(f"/instructions?name={name}" in listed for name in REGISTRY)
    page = served.page("/instructions", name="nc_matmul")
    assert page.count("<h2>") >= 6
    assert "<pre>" in page
    assert served.ask("/instructions?name=nothing")[0] == 404


def test_the_cache_and_checkpoints_are_listed(served: Served) -> None:
    assert "empty" in served.page("/cache")
    assert served.ask("/cache?key=abc")[0] == 400
    assert "place=kept" in served.page("/checkpoints")
    assert "not finished" in served.page("/checkpoints", place="kept")
    assert served.ask("/checkpoints?place=/etc")[0] == 404


def test_what_failures_leave_is_what_the_command_says(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    page = _answered(served, "/goodput", chips="500k", power="2GW", model="")
    assert main(["goodput", "--chips", "500k", "--power", "2GW"]) == 0
    printed = capsys.readouterr().out
    for part in ("6.08 min", "92.5%", "2,000 MW are enough", "replicas of 352 chips leave and come back"):
        assert part in printed
        assert part in page
    assert "trnlab goodput --chips=500k --power=2GW" in page
    assert "TRN173" in _answered(served, "/goodput", chips="none")
    assert served.ask("/goodput?chips=4&model=/etc/passwd")[0] == 404


def test_serving_is_planned_as_the_command_does(served: Served) -> None:
    page = _answered(
        *(served, "/serve-plan"), model="gpt2", target="inf2.xlarge", beside="g6e.xlarge", ranks="1", prompt="100"
    )
    assert "inf2.xlarge" in page
    assert "Memory of a rank" in page
    assert "roofline" in page
    assert served.ask("/serve-plan?model=../x")[0] == 404
    assert "TRN101" in _answered(served, "/serve-plan", model="gpt2", target="inf9.xlarge")


def test_a_search_runs_where_a_button_is_pressed_and_shows_its_progress(served: Served) -> None:
    for name in ("tunable_rmsnorm.py", "rmsnorm_reference.py"):
        shutil.copy(BENCH / name, served.site.folders[0] / name)
    asked = {
        "kernel": "tunable_rmsnorm.py",
        "reference": "rmsnorm_reference.py",
        "param": "columns=512,2048;rows=128",
    }
    assert "Choose a kernel" in served.page("/tune", **asked)
    assert served.ask(f"/tune/part?{urlencode(asked)}")[0] == 405  # an address alone runs nothing
    until = time.monotonic() + 120
    found = served.values("/tune/part", "POST", **asked)
    while not found["over"]:
        assert time.monotonic() < until
        found = served.values("/tune/part", "POST", **asked)
    assert "columns=512, rows=128: " in found["html"]
    assert any(line.startswith("2 of 2 points, the best so far: ") for line in found["lines"])
    assert "2 of 2 points were tried" in served.page("/tune", **asked)
    assert served.ask("/tune?kernel=/etc/passwd")[0] == 404


def _answered(served: Served, path: str, **asked: str) -> str:
    """The part of a question's view once it is over."""
    until = time.monotonic() + 120
    while True:
        found = served.values(f"{path}/part", **asked)
        if found["over"]:
            return str(found["html"])
        assert time.monotonic() < until
