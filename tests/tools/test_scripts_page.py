# SPDX-License-Identifier: Apache-2.0
"""The table of docs/scripts.md is made of results that are kept: one renewed is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tools.scripts import __main__ as tool
from tools.scripts import page, processes
from tools.scripts.manifest import SCRIPTS


def _record(name: str, on_host: dict[str, int], ours: list[float], theirs: list[float]) -> dict[str, object]:
    chip = {"status": 0, "losses": ours, "instructions": 5, "on_host": on_host, "steps": 1, "programs": 1}
    return {"name": name, "source": "own", "cpu": {"status": 0, "losses": theirs}, "chip": chip, "version": "1"}


def test_random_numbers_are_told_apart_from_operators_that_the_chip_lacks():
    record = _record("one", {"aten::bernoulli_": 6, "aten::sort": 1}, [1.0], [1.0])
    assert page.verdict(record) == "chip, 1 operator on the host, 6 drawn"
    assert "`sort` 1" in page._row(record)
    assert "bernoulli_" not in page._row(record)


def test_a_loss_that_is_not_the_cpus_is_wrong():
    assert page.wrong(_record("one", {}, [1.0, 2.01], [1.0, 2.0]))
    assert not page.wrong(_record("one", {}, [1.0, 2.0], [1.0, 2.0]))


def test_results_are_kept_in_the_order_of_the_manifest(tmp_path):
    first, second = SCRIPTS[0].name, SCRIPTS[1].name
    known = {name: _record(name, {}, [], []) for name in (second, first)}
    tool._keep(tmp_path / "kept.jsonl", known)
    kept = [json.loads(line)["name"] for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert kept == [first, second]


def test_a_process_that_takes_too_long_is_ended(tmp_path):
    (tmp_path / "endless.py").write_text("print('begun', flush=True)\nwhile True:\n    pass\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        status, said = processes.ended(["endless.py"], tmp_path, environment, 1)
    finally:
        processes.close()
    assert (status, said.strip()) == (processes.LATE, "begun")


def test_a_size_without_an_option_is_replaced_and_the_page_says_so():
    assert tool.edited("x = random((50000, 100))", {"50000": "160"}) == "x = random((160, 100))"
    record = _record("one", {}, [1.0], [1.0]) | {"edits": ["50000 -> 160"]}
    assert "- one: `50000 -> 160`" in page.page([record])
    assert "Replaced" not in page.page([_record("one", {}, [1.0], [1.0])])


def test_a_script_that_draws_without_a_seed_is_given_one(tmp_path):
    """It is its own main module, with its arguments, and finds modules beside it."""
    drawn = "import random\nimport numpy\ndrawn = random.random(), numpy.random.random()\n"
    (tmp_path / "beside.py").write_text(drawn)
    script = "import sys\nfrom beside import drawn\nprint(__name__, sys.argv[1:], *drawn)\n"
    (tmp_path / "script.py").write_text(script)
    seeded = tool.ROOT / "tools" / "scripts" / "own" / "seeded.py"
    command = [sys.executable, str(seeded), str(tmp_path / "script.py"), "--steps=3"]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == second
    assert first.startswith("__main__ ['--steps=3']")
