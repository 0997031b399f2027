# SPDX-License-Identifier: Apache-2.0
"""What `trnlab bench` says of right, wrong and hostile kernels, through the command."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trnlab.bench import hostile
from trnlab.bench.judging import compared
from trnlab.bench.tolerance import exact
from trnlab.cli.main import main
from trnlab.view.effects import NAMESPACES
from trnlab.view.followed import follow
from trnlab.view.request import ViewRequest

HERE = Path(__file__).parent


def protection() -> str:
    """What keeps code in a view from this machine, here."""
    return follow(ViewRequest("builtins:len", ((),)), lambda *asked: None)[1].protection


REFERENCE = HERE / "softmax_reference.py"


def bench(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    """Exit status and record of the command."""
    status = main(["bench", "--json", "--jobs", "1", *map(str, words)])
    return status, json.loads(capsys.readouterr().out)


def of(record: dict[str, Any]) -> dict[str, Any]:
    """The candidates by file."""
    return {Path(c["file"]).stem: c for c in record["candidates"]}


def test_right_is_told_from_wrong_and_only_where_it_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = [HERE / "candidates" / f"{name}.py" for name in ("softmax_without_maximum", "softmax")]
    status, record = bench(capsys, "--reference", REFERENCE, *kernels)
    found = of(record)
    assert status == 1
    assert [c["kernel"] for c in record["candidates"]] == ["softmax.py", "softmax_without_maximum.py"]
    assert found["softmax"]["verdict"] == "right"
    assert {c["name"] for c in found["softmax"]["cases"]} >= {"usual 1", "usual 2", *hostile.FAMILIES}
    wrong = found["softmax_without_maximum"]
    assert {c["name"] for c in wrong["cases"] if not c["right"]} == {"large", "outliers"}
    low, high = found["softmax"]["band_ps"]
    assert low <= found["softmax"]["time_ps"] <= high
    assert found["softmax"]["counters"]["hbm_read_bytes"] == 512 * 512 * 4


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("endless", "TRN589"),
        ("hungry", "TRN842"),
        ("forks", "TRN589"),
        ("writes", "TRN842"),
        ("connects", "TRN842"),
        ("crashes", "TRN583"),
        ("floods", "TRN583"),
    ],
)
def test_code_that_does_harm_is_ended_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], name: str, code: str
) -> None:
    if name in ("forks", "hungry") and protection() != NAMESPACES:
        pytest.skip("no namespaces here: what processes use together is not added up")
    limits = ("--seconds", 4, "--memory", 0.75, "--no-band", "--inputs", "usual")
    status, record = bench(capsys, *limits, "--reference", REFERENCE, HERE / "candidates" / f"{name}.py")
    (candidate,) = record["candidates"]
    assert (status, candidate["verdict"], candidate["error"]["code"]) == (1, "refused", code)
    for place in (HERE / "candidates", Path.home(), Path(tempfile.gettempdir())):
        assert not list(place.glob("written_by_a_candidate*"))


@pytest.mark.parametrize("name", ["patches_the_judge", "forges_a_result", "calls_the_reference"])
def test_kernels_that_cheat_are_wrong_with_the_time_of_what_they_do(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words = ("--no-band", "--inputs", "usual", "--reference", REFERENCE)
    honest = of(bench(capsys, *words, HERE / "candidates" / "softmax.py")[1])["softmax"]
    _, record = bench(capsys, *words, HERE / "candidates" / f"{name}.py")
    (candidate,) = record["candidates"]
    if name == "forges_a_result" and candidate["verdict"] == "refused":
        return  # on a busy machine it is ended some seconds after its forged result, which is no program
    assert candidate["verdict"] == "wrong"
    assert candidate["time_ps"] > honest["time_ps"] / 3


def test_one_that_fails_takes_no_other_with_it_and_copies_are_judged_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = (HERE / "candidates" / "softmax.py").read_text()
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "b.py").write_text("# another name for the same\n" + text)
    (tmp_path / "c.py").write_text("import ctypes\nctypes.string_at(0)\n")
    (tmp_path / "d.py").write_text("x = 1\n")
    forged = "ViewProcess.line.say('result', [CandidateRecording({'': b'no program'})])\nos.kill(os.getpid(), 9)\n"
    imports = (
        "import os\nfrom trnlab.bench.recording import CandidateRecording\nfrom trnlab.view.line import ViewProcess\n"
    )
    (tmp_path / "e.py").write_text(imports + forged)
    status, record = bench(capsys, "--no-band", "--inputs", "usual", "--reference", REFERENCE, tmp_path, "--jobs", 2)
    found = of(record)
    assert status == 1
    assert [found[n]["verdict"] for n in "abcde"] == ["right", "right", "refused", "refused", "refused"]
    assert found["b"]["same_as"] == "a.py"
    assert [found[n]["error"]["code"] for n in "de"] == ["TRN840", "TRN601"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["no_such.py"], "TRN840"),
        (["--reference", "no_such.py", HERE / "candidates" / "softmax.py"], "TRN841"),
        ([HERE / "candidates" / "softmax.py"], "TRN844"),
        (["--input", "float31[4]", HERE / "candidates" / "softmax.py"], "TRN844"),
        (["--reference", REFERENCE, "--inputs", "nasty", HERE / "candidates" / "softmax.py"], "TRN844"),
    ],
)
def test_wrong_questions_say_what_was_wrong(
    capsys: pytest.CaptureFixture[str], words: list[object], code: str
) -> None:
    assert main(["bench", *map(str, words)]) != 0
    assert code in capsys.readouterr().err


def test_an_error_beyond_what_formats_explain_is_found_in_any_element() -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((64, 256)), rng.standard_normal((256, 32))
    (right,) = exact(lambda a, b: a @ b, [x, w], ("bfloat16",), rng)
    in_float32 = x.astype(np.float32) @ w.astype(np.float32)
    assert compared("", [in_float32], [right], None).right
    rounded = [a.astype(np.float32).view(np.uint32) + 0x8000 & 0xFFFF0000 for a in (x, w)]
    in_bfloat16 = np.matmul(*(a.view(np.float32).astype(np.float64) for a in rounded))
    assert compared("", [in_bfloat16.astype(np.float32)], [right], "bfloat16").right
    assert not compared("", [in_bfloat16.astype(np.float32)], [right], None).right
    for place in np.ndindex(4, 4):
        spoilt = in_float32.copy()
        spoilt[place] *= 1.02
        assert not compared("", [spoilt], [right], None).right
