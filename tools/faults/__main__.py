# SPDX-License-Identifier: Apache-2.0
"""Plant faults in a checkout, one at a time, and see which its tests catch; or compare two such runs.

coverage run ... (see CONTRIBUTING.md), then
python -m tools.faults reached --data .coverage --costs costs.txt --to reached.json
python -m tools.faults plant --checkout ../copy --reached reached.json --count 100 --seed 1 --to old.jsonl
python -m tools.faults plant --checkout ../new --reached new.json --faults old.jsonl --to new.jsonl
python -m tools.faults compare old.jsonl new.jsonl
python -m tools.faults choose --data FOLDER --seconds durations.txt --to tests/left_to_test_all.txt
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tools.faults import choice, draw, reached
from tools.faults.kinds import Fault
from tools.faults.trial import trial


def main() -> int:
    """1 where the newer suite misses what the older caught."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    keep = commands.add_parser("reached", help="which tests reach which lines, from coverage's data")
    for name in ("--data", "--costs", "--to"):
        keep.add_argument(name, type=Path, required=True)
    plant = commands.add_parser("plant", help="plant faults and run tests")
    plant.add_argument("--checkout", type=Path, required=True, help="a clone that nobody else uses: it is changed")
    plant.add_argument("--reached", type=Path, required=True)
    plant.add_argument("--to", type=Path, required=True, help="a line of JSON for each fault; those there are kept")
    plant.add_argument("--faults", type=Path, help="the faults of this earlier run, those that it caught")
    plant.add_argument("--count", type=int, default=100)
    plant.add_argument("--seed", type=int, default=1)
    plant.add_argument("--budget", type=float, default=120.0, help="processor seconds of tests for each fault")
    plant.add_argument(
        "--marks", default="", help="of the tests that run, as pytest's -m: 'not slow' for `make test`"
    )
    comparison = commands.add_parser("compare", help="two runs beside each other")
    comparison.add_argument("old", type=Path)
    comparison.add_argument("new", type=Path)
    chosen = commands.add_parser("choose", help="which long tests are left to `make test-all`")
    chosen.add_argument("--data", type=Path, required=True, help="the folder of coverage's data files")
    chosen.add_argument("--seconds", type=Path, required=True, help="what `pytest --durations=0` printed")
    chosen.add_argument("--missing", type=float, default=0.001, help="part of all arcs that these may reach alone")
    chosen.add_argument("--cheap", type=float, default=1.0, help="seconds that one form of each test may take")
    chosen.add_argument("--to", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "choose":
        return _choose(given)
    if given.command == "reached":
        reached.keep(given.data, given.costs, given.to)
        return 0
    return _plant(given) if given.command == "plant" else _compare(given.old, given.new)


def _choose(given: argparse.Namespace) -> int:
    seconds, found = choice.seconds_of(given.seconds), choice.arcs_by_test(given.data)
    left, alone = choice.choose(found, seconds, given.missing, given.cheap)
    choice.write(given.to, left, seconds)
    spent, total = sum(seconds[test] for test in left), sum(seconds.values())
    print(
        f"{len(left)} tests are left out, {spent:.0f} of {total:.0f} s; {alone} arcs of the package are theirs alone"
    )
    return 0


def _plant(given: argparse.Namespace) -> int:
    tests = reached.read(given.reached)
    if given.faults:
        caught = [row for row in _rows(given.faults) if row["caught"] == "yes"]
        chosen, first = [Fault(**row["fault"]) for row in caught], [row["by"].split("::")[0] for row in caught]
    else:
        chosen = draw.draw(given.checkout / "src", given.count, given.seed, tests.tests)
        first = [""] * len(chosen)
    known = {json.dumps(row["fault"]) for row in _rows(given.to)}
    for i, (fault, begin) in enumerate(zip(chosen, first), 1):
        if json.dumps(asdict(fault)) in known:
            continue
        outcome = trial(given.checkout, fault, tests, given.budget, begin, given.marks)
        with given.to.open("a") as to:
            to.write(json.dumps({"fault": asdict(fault), "name": fault.name, **asdict(outcome)}) + "\n")
        print(f"{i} of {len(chosen)}: {outcome.caught:4} {fault.name}  {outcome.by}", flush=True)
    return 0


def _rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _compare(old: Path, new: Path) -> int:
    now = {json.dumps(row["fault"]): row for row in _rows(new)}
    lost = 0
    for row in _rows(old):
        after = now.get(json.dumps(row["fault"]))
        if row["caught"] != "yes" or after is None:
            continue
        lost += after["caught"] == "no"
        print(f"{after['caught']:4} {row['name']}\n     before: {row['by']}\n     now:    {after['by']}")
    caught = sum(row["caught"] == "yes" for row in _rows(old))
    print(
        f"{caught} caught before, {lost} of them missed now, {sum(r['caught'] == 'gone' for r in now.values())} gone"
    )
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
