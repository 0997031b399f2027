# SPDX-License-Identifier: Apache-2.0
"""Searches of a kernel's parameters: what is tried, refused, found and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trnlab.bench import variants
from trnlab.cli.main import main
from trnlab.errors import UsageError

HERE = Path(__file__).parent
WORDS = ("tune", "--json", "--jobs", "1", "--inputs", "usual", "--reference", str(HERE / "rmsnorm_reference.py"))
KERNEL = str(HERE / "tunable_rmsnorm.py")


def tuned(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*WORDS, *map(str, words), KERNEL]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_best_is_the_fastest_of_all_and_the_winner_is_its_source(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    winner = tmp_path / "best.py"
    words = ("--no-cache", "--param", "columns=512,2048", "--param", "rows=64,128,256", "--winner", winner)
    found = tuned(capsys, *words)
    times = {(t["values"]["columns"], t["values"]["rows"]): t["time_ps"] for t in found["trials"]}
    assert len(times) == 6
    assert {rows for (_, rows), time in times.items() if time is None} == {256}
    assert all("TRN404" in t["refused"] for t in found["trials"] if t["time_ps"] is None)
    best = found["best"]["values"]
    assert found["best"]["time_ps"] == min(t for t in times.values() if t) == times[best["columns"], best["rows"]]
    assert f"rows={best['rows']}, columns={best['columns']}" in winner.read_text()
    assert main(["bench", "--json", "--no-band", "--reference", WORDS[-1], str(winner)]) == 0
    judged = json.loads(capsys.readouterr().out)["candidates"][0]
    assert (judged["verdict"], judged["time_ps"]) == ("right", found["best"]["time_ps"])


def test_what_was_tried_is_not_tried_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRNLAB_CACHE", str(tmp_path))
    first = tuned(capsys, "--param", "columns=512,2048", "--param", "rows=128")
    again = tuned(capsys, "--param", "columns=512,1024,2048", "--param", "rows=128")
    assert (first["reused"], again["reused"], again["tried"]) == (0, 2, 3)


def test_fast_and_wrong_does_not_win(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    text = Path(KERNEL).read_text().replace("x.shape[0] // rows):\n", "x.shape[0] // rows // skip):\n", 1)
    kernel.write_text(text.replace("rows=32, columns=128", "rows=128, columns=2048, skip=1"))
    assert main([*WORDS, "--no-cache", "--param", "skip=1,2", str(kernel)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert min(found["trials"], key=lambda t: t["time_ps"])["values"] == {"skip": 2}
    assert found["best"]["values"] == {"skip": 1}


def test_a_large_space_is_sampled_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    found = tuned(capsys, "--no-cache", "--budget", 8, "--seed", 3)
    assert (found["points"], found["tried"]) == (32, 8)
    values = [tuple(t["values"].items()) for t in found["trials"]]
    assert len(set(values)) == 8


SOURCE = """SIZE = 4  # é
NAME = "a"


@nki.jit
def kernel(x, tile=128, *, how="vector", wide=(
    1, 2)):
    return x
"""


def test_values_are_written_where_the_old_ones_stood() -> None:
    found = variants.edited(SOURCE, "", {"SIZE": 8, "NAME": "b", "tile": 64, "how": "scalar", "wide": (3,)})
    assert found == SOURCE.replace("= 4", "= 8").replace('"a"', "'b'").replace("128", "64").replace(
        '"vector"', "'scalar'"
    ).replace("(\n    1, 2)", "(3,)")


@pytest.mark.parametrize("said", ["tile", "tile=", "=3", "2x=3"])
def test_what_is_no_parameter_is_refused(said: str) -> None:
    with pytest.raises(UsageError, match="parameter"):
        variants.space("", [said])


def test_a_name_that_the_kernel_does_not_have_is_said_with_those_it_has() -> None:
    with pytest.raises(UsageError) as error:
        variants.edited(SOURCE, "kernel", {"tiles": 3})
    assert "tile" in str(error.value.limit)
