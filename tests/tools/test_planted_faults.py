# SPDX-License-Identifier: Apache-2.0
"""The tool that plants faults: what it plants, where it finds it again, and what it calls caught."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tools.faults import choice, draw, kinds, reached, trial

TEXT = '''
def area(width: "int | None", rows: list) -> int:
    """Of what is there."""
    if width < 0:
        raise ValueError("negative")
    log(width)
    total = 0
    for row in rows[1:]:
        total += min(row, width) * 2 + len("ä") - 1
    return total if width and rows else -width
'''


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("wrong bound", "width < 0", "(width <= 0)"),
        ("guard", "width < 0", "False"),
        ("dropped call", "log(width)", "None"),
        ("dropped call", 'total += min(row, width) * 2 + len("ä") - 1', "None"),
        ("off by one", "1", "(1) + 1"),
        ("wrong extreme", "min", "max"),
        ("wrong sign", 'min(row, width) * 2 + len("ä") - 1', "(min(row, width) * 2 + len('ä') + (1))"),
        ("wrong sign", "-width", "(width)"),
        ("wrong case", "width and rows", "((width) or (rows))"),
    ],
)
def test_a_fault_replaces_what_it_says_and_nothing_else(kind, old, new):
    (fault,) = (f for f in kinds.faults("a.py", TEXT) if (f.kind, f.old, f.new) == (kind, old, new))
    planted = fault.planted(TEXT)
    assert planted == TEXT[: fault.start] + new + TEXT[fault.end :]
    assert TEXT[fault.start : fault.end] == old
    ast.parse(planted)


def test_annotations_have_no_faults():
    assert not any("None" in f.old for f in kinds.faults("a.py", TEXT))


def test_the_same_seed_draws_the_same_faults_of_every_package(tmp_path):
    for package in ("isa", "sim/timing", "frontends/torch", "fleet"):
        (tmp_path / "trnlab" / package).mkdir(parents=True)
        (tmp_path / "trnlab" / package / "a.py").write_text(TEXT)
    first, again, other = (draw.draw(tmp_path, 8, seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    counts = Counter(draw.package(fault.file) for fault in first)
    assert counts == {"trnlab/isa": 2, "trnlab/sim/timing": 2, "trnlab/frontends/torch": 2, "trnlab/fleet": 2}


def test_lines_that_no_test_reaches_are_not_drawn(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text(TEXT)
    drawn = draw.draw(tmp_path, 100, 1, [("package/a.py", 4)])
    assert drawn
    assert {fault.line for fault in drawn} == {4}


def test_a_fault_is_found_again_where_lines_moved():
    (fault,) = (f for f in kinds.faults("a.py", TEXT) if f.kind == "wrong extreme")
    assert trial.moved(fault, "\n\n" + TEXT).line == fault.line + 2
    assert trial.moved(fault, TEXT.replace("min", "sum")) is None


def test_tests_of_the_same_package_come_first_and_then_the_cheap_ones():
    tests = ("tests/cli/test_a.py", "tests/sim/timing/test_b.py", "tests/sim/test_c.py", "tests/isa/test_d.py")
    found = reached.Reached({("trnlab/sim/timing/x.py", 3): tests}, {"tests/cli/test_a.py": 9.0})
    assert found.order("trnlab/sim/timing/x.py", 3) == [tests[1], tests[2], tests[3], tests[0]]


def test_a_failure_counts_if_the_test_passes_without_the_fault(tmp_path):
    """Of three tests one fails with every source, one notices the fault, one notices nothing."""
    (tmp_path / "src").mkdir()
    source = tmp_path / "src" / "measured.py"
    source.write_text("def larger(a, b):\n    return max(a, b)\n")
    (tmp_path / "test_m.py").write_text(
        "from measured import larger\n\ndef test_broken():\n    assert False\n\n"
        "def test_same():\n    assert larger(1, 1) == 1"
        "\n\ndef test_larger():\n    assert larger(1, 2) == 2\n"
    )
    (fault,) = kinds.faults("measured.py", source.read_text())
    tests = reached.Reached({("measured.py", 2): ("test_m.py",)}, {})
    outcome = trial.trial(tmp_path, fault, tests, 30.0)
    assert (outcome.caught, outcome.by) == ("yes", "test_m.py::test_larger")
    assert "max(a, b)" in source.read_text()


def test_long_tests_are_taken_for_what_they_add_and_once_for_each_proof(monkeypatch):
    """One that adds nothing is left out, but for its cheapest form where that is cheap."""
    monkeypatch.setattr(choice, "ALWAYS", ("t.py::promise",))
    seconds = {
        "t.py::short": 0.1,
        "t.py::adds": 9.0,
        "t.py::dear": 9.0,
        "t.py::same[1]": 0.9,
        "t.py::same[2]": 0.8,
        "t.py::promise[a]": 8.0,
        "t.py::promise[b]": 7.0,
        "t.py::short[long]": 2.0,
        "t.py::new": 5.0,
    }
    arcs = {"t.py": range(90), "t.py::adds": range(80, 99), "t.py::dear": range(95), "t.py::same[1]": range(9)}
    arcs |= dict.fromkeys(("t.py::promise[a]", "t.py::promise[b]", "t.py::short[long]"), ())
    reached = {name: {("a.py", n, n + 1) for n in numbers} for name, numbers in arcs.items()}
    left, alone = choice.choose(reached, seconds, missing=0.0, cheap=1.0)
    assert left == ["t.py::dear", "t.py::promise[a]", "t.py::same[1]", "t.py::short[long]"]
    assert alone == 0
    assert "t.py::adds" in choice.choose(reached, seconds, missing=0.1, cheap=1.0)[0]


def test_what_is_left_to_test_all_is_there():
    """A test of another name would run again, and nobody would know that it is long."""
    tests = Path(choice.__file__).parents[2]
    rows = (tests / "tests" / "left_to_test_all.txt").read_text().splitlines()
    names = [row.split(maxsplit=1)[1] for row in rows if not row.startswith("#")]
    assert names
    for name in names:
        file, _, rest = name.partition("::")
        assert f"def {rest.partition('[')[0]}(" in (tests / file).read_text(), name
