# SPDX-License-Identifier: Apache-2.0
"""Which of the long tests `make test` runs, so that those which it leaves out reach little that no other test does.

Short tests run all. Of the long ones those are taken that add most to what is reached, for their seconds, until what
only the others reach is a small part; then one form of each test that is cheap enough; and what ALWAYS names.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

LONG_S = 0.7  # what is shorter is not asked for its use
# Promises of the README that a long test holds and nothing shorter does, in one form each.
ALWAYS = (
    "tests/installation/test_wheel.py::test_a_kernel_and_a_plan_run_from_a_wheel_in_an_empty_environment",
    "tests/frontends/test_resume.py::test_training_that_is_killed_goes_on_bit_for_bit",
    "tests/distributed/test_elastic.py::test_a_job_goes_on_with_fewer",
    "tests/distributed/test_process_group.py::test_collectives",
    "tests/frontends/distributed/test_fully_sharded_steps.py::test_shards_learn_what_one_process_learns",
    "tests/frontends/distributed/test_models_of_ranks.py::test_ranks_learn_what_one_process_learns",
    "tests/frontends/test_vendor_imports.py::test_a_script_for_xla_runs",
    "tests/frontends/test_vendor_imports.py::test_ranks_that_a_script_starts_itself_leave_a_run",
    "tests/frontends/test_jax.py::test_models_of_flax_and_equinox_train_as_on_the_cpu",
    "tests/frontends/test_unedited_tensorflow.py::test_a_loop_of_keras_trains_evaluates_and_predicts_on_the_chip",
    "tests/compiler/test_compiled_models.py::test_training_in_fp32_is_pytorchs",
    "tests/frontends/test_precision_of_checks.py::test_an_estimate_is_the_time_of_the_run",
    "tests/fleet/test_fleet_plans.py::test_on_the_command_line",
)
Arc = tuple[str, int, int]


def seconds_of(report: Path) -> dict[str, float]:
    """Seconds by test, from what `pytest --durations=0` printed."""
    found: dict[str, float] = defaultdict(float)
    for line in report.read_text(errors="replace").splitlines():
        matched = re.match(r"\s*([\d.]+)s (?:call|setup|teardown)\s+(\S.*)", line)
        if matched:
            found[matched[2].strip()] += float(matched[1])
    return dict(found)


def arcs_by_test(folder: Path) -> dict[str, set[Arc]]:
    """What each context of coverage's data files went through: long tests by name, the others by their files.

    The files are read as the documentation of coverage has their tables: its own interface asks for one context and
    one source file at a time, which takes minutes.
    """
    found: dict[str, set[Arc]] = defaultdict(set)
    for path in sorted(folder.glob(".coverage*")):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as data:
            files = {n: name.rpartition("/trnlab/")[2] for n, name in data.execute("select id, path from file")}
            contexts = {n: name.rpartition("|")[2] for n, name in data.execute("select id, context from context")}
            for file, context, a, b in data.execute("select file_id, context_id, fromno, tono from arc"):
                found[contexts[context]].add((files[file], a, b))
    return found


def choose(
    reached: Mapping[str, set[Arc]], seconds: Mapping[str, float], missing: float, cheap: float
) -> tuple[list[str], int]:
    """The long tests that are left to `make test-all`, and how many arcs only they go through.

    missing: the part of all arcs that may be reached by these alone. cheap: seconds that one form of each test may
    take to be run.
    """
    long = {test for test, spent in seconds.items() if spent >= LONG_S}
    everything = set().union(*reached.values())
    covered = set().union(*(arcs for name, arcs in reached.items() if name not in long))
    kept = {next_ for start in ALWAYS if (next_ := _cheapest((t for t in long if t.startswith(start)), seconds))}
    covered |= set().union(*(reached.get(name, set()) for name in kept))
    left = {name: reached[name] - covered for name in long - kept if name in reached}
    while len(everything) - len(covered) > missing * len(everything):
        best = max(left, key=lambda name: (len(left[name] - covered) / seconds[name], name))
        kept.add(best)
        covered |= left.pop(best)
    kept |= _one_of_each(long, kept, seconds, cheap)
    covered |= set().union(*(reached.get(name, set()) for name in kept))
    return sorted((long - kept) & reached.keys()), len(everything - covered)  # of the others nothing is known


def _one_of_each(long: set[str], kept: set[str], seconds: Mapping[str, float], cheap: float) -> set[str]:
    """The cheapest form of each test of which none runs yet, where it is cheap."""
    runs = {_function(test) for test in {*seconds} - long | kept}
    forms: dict[str, list[str]] = defaultdict(list)
    for test in long:
        forms[_function(test)].append(test)
    cheapest = (_cheapest(tests, seconds) for name, tests in forms.items() if name not in runs)
    return {test for test in cheapest if seconds[test] <= cheap}


def _cheapest(tests: Iterable[str], seconds: Mapping[str, float]) -> str:
    return min(tests, key=lambda test: (seconds[test], test), default="")


def _function(test: str) -> str:
    return test.partition("[")[0]


def write(to: Path, left: Iterable[str], seconds: Mapping[str, float]) -> None:
    """A line for each test that is left out: its seconds and its name."""
    head = "# Long tests that `make test` leaves to `make test-all`, with their seconds; see docs/adr/0108.\n"
    to.write_text(head + "".join(f"{seconds[test]:6.1f} {test}\n" for test in left))
