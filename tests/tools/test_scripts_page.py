# SPDX-License-Identifier: Apache-2.0
"""The table of docs/scripts.md is made of results that are kept: one renewed is one line."""

from __future__ import annotations

import json
import os
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
