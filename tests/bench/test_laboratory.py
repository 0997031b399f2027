# SPDX-License-Identifier: Apache-2.0
"""The laboratory as a program uses it: by calls, and by the protocol through its own SDK's client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from trnlab.bench import laboratory

HERE = Path(__file__).parent
SOFTMAX, NAIVE = ((HERE / "candidates" / f"{name}.py").read_text() for name in ("softmax", "softmax_without_maximum"))
REFERENCE = (HERE / "softmax_reference.py").read_text()


def test_a_kernel_is_judged_explained_and_compared() -> None:
    judged = laboratory.judge(SOFTMAX, reference=REFERENCE)
    assert judged["verdict"] == "right"
    assert judged["range_us"][0] <= judged["time_us"] <= judged["range_us"][1]
    told = laboratory.explain(SOFTMAX, inputs=["float32[512,512]"])
    assert told["time_us"] == judged["time_us"]
    assert sum(told["critical_path_percent"].values()) == pytest.approx(100, abs=1)
    assert any("nl.max" in row["text"] for row in told["costliest_lines"])
    gains = [row["gain_percent_at_most"] for row in told["changes"]]
    assert gains == sorted(gains, reverse=True)
    assert len(json.dumps(told)) < 6000
    ladder = laboratory.compare([NAIVE, SOFTMAX], reference=REFERENCE)["ladder"]
    assert [(row["kernel"], row["verdict"]) for row in ladder] == [(1, "right"), (0, "wrong")]
    assert ladder[1]["wrong_for"] == ["large", "outliers"]


def test_what_is_wrong_is_an_answer_with_the_way_out() -> None:
    wide = laboratory.judge(SOFTMAX.replace("(r + 1) * 128", "(r + 2) * 128"), reference=REFERENCE)
    assert wide["verdict"] == "refused"
    assert (wide["limit"], "pmax" in wide["do"]) == (128, True)
    assert "nl.load" in wide["at"]["text"]
    assert "error" in laboratory.judge("no_such.py")
    assert "error" in laboratory.judge(SOFTMAX)
    assert "error" in laboratory.tune(SOFTMAX, {"tile": [1]}, reference=REFERENCE)


def test_a_reference_that_does_harm_is_contained(tmp_path: Path) -> None:
    left = tmp_path / "left"
    bad = REFERENCE + f"\nopen({str(left)!r}, 'w').write('x')\nimport time\ntime.perf_counter = lambda: 0.0\n"
    assert laboratory.judge(SOFTMAX, reference=bad, hostile=False)["verdict"] == "right"
    assert not left.exists()


def test_instructions_and_rules_are_looked_up() -> None:
    assert "nc_matmul" in laboratory.instruction()["names"]
    assert "Limits" in laboratory.instruction("nc_matmul")["page"]
    assert set(laboratory.instruction("matmul")["names"]) >= {"nc_matmul"}
    assert laboratory.rules("bank")["found"] > 1


def test_the_server_answers_as_the_functions_do_and_reads_no_other_files(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp")
    from trnlab.cli.kernels.mcp import TOOLS, server

    inside, outside = tmp_path / "folder", tmp_path / "secret.py"
    inside.mkdir()
    (inside / "softmax.py").write_text(SOFTMAX)
    outside.write_text(SOFTMAX)

    async def talk() -> tuple[Any, ...]:
        async with mcp.Client(server(inside)) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            words = {"inputs": ["float32[128,128]"]}
            good = await client.call_tool("judge", {"kernel": str(inside / "softmax.py"), **words})
            bad = await client.call_tool("judge", {"kernel": str(outside), **words})
            return names, good, bad

    names, good, bad = asyncio.run(talk())
    assert names == [tool.__name__ for tool in TOOLS]
    assert good.structured_content["verdict"] == "timed"
    assert bad.structured_content["error"].startswith("TRN840")
