# SPDX-License-Identifier: Apache-2.0
"""`trnlab fabric health` names the part that was made sick, by text, JSON and exit status."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from trnlab.cli import main as command
from trnlab.fabric import faults, health, network
from trnlab.fabric.cluster import parse
from trnlab.fabric.measured import Measured
from trnlab.fabric.nccom import Bench
from trnlab.fabric.timing import cost

SIZES = [1 << bits for bits in (10, 16, 20, 24, 30)]


def bench(target, *sick, **slower):
    place = parse(target)
    net = faults.applied(network.build(place), list(sick))
    costs = {name: getattr(net.costs, name)._replace(value=value) for name, value in slower.items()}
    net = replace(net, costs=replace(net.costs, **costs))
    return Bench("all_reduce", net, place.placed(place.ranks), [range(place.ranks)])


def rows(of, noise=0.0, factor=1.0):
    draw = np.random.default_rng(3)
    return [
        Measured(s, of.row(s).microseconds * factor * float(np.exp(noise * draw.standard_normal()))) for s in SIZES
    ]


@pytest.mark.parametrize("target", ["2xtrn1.32xlarge", "trn2.48xlarge"])
def test_a_healthy_network_is_healthy_in_spite_of_noise(target):
    found = health.examine(rows(bench(target), noise=0.02), bench(target))
    assert found.healthy
    assert not found.suspects


@pytest.mark.parametrize(
    ("target", "sick", "kind", "part", "left"),
    [
        ("2xtrn1.32xlarge", "efa:node0.rail3=half", "rail", "efa:node0.rail3", 0.5),
        ("2xtrn1.32xlarge", "efa:node1.rail5=0.3", "rail", "efa:node0.rail5", 0.3),
        ("2xtrn1.32xlarge", "link:node0.0-4=half", "link", "link:node0.0-4", 0.5),
        ("trn2.48xlarge", "link:5-6=quarter", "link", "link:5-6", 0.25),
    ],
)
def test_a_slow_part_is_named_with_what_is_left_of_it(target, sick, kind, part, left):
    """Alike parts of other instances stand under the first one's name; noise of 1 %."""
    found = health.examine(rows(bench(target, sick), noise=0.01), bench(target))
    assert not found.healthy
    assert found.explained
    first = found.suspects[0]
    assert first.kind == kind
    assert part in first.parts
    assert first.severity == pytest.approx(left, rel=0.1)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"launch": 60_000}, "launch"),
        ({"network_step": 90_000}, "steps between instances"),
        ({"step": 15_000}, "steps within an instance"),
    ],
)
def test_latencies_are_told_from_rates(changed, part):
    found = health.examine(rows(bench("2xtrn1.32xlarge", **changed)), bench("2xtrn1.32xlarge"))
    assert found.suspects[0].kind == "latency"
    assert found.suspects[0].parts == (part,)
    assert found.explained


def test_another_algorithm_for_some_sizes_is_named():
    of = bench("trn2.48xlarge")
    table = rows(of)
    for place in (3,):
        schedule = of.schedule(SIZES[place], inside="mesh")
        table[place] = Measured(SIZES[place], cost(schedule, of.network, of.placed, SIZES[place]).seconds * 1e6)
    found = health.examine(table, of)
    assert found.off == [False, False, False, True, False]
    assert found.suspects[0].kind == "algorithm"
    assert found.suspects[0].parts == ("mesh within an instance for 16M",)


def test_what_no_single_part_explains_is_said():
    table = [
        Measured(row.size, row.microseconds * (3 if place % 2 else 0.3))
        for place, row in enumerate(rows(bench("trn2.48xlarge")))
    ]
    found = health.examine(table, bench("trn2.48xlarge"))
    assert not found.healthy
    assert not found.explained


def test_a_baseline_takes_out_what_the_model_misses():
    target = bench("2xtrn1.32xlarge")
    good = rows(target, factor=1.4)
    assert health.examine(good, target, baseline=good).healthy
    sick = rows(bench("2xtrn1.32xlarge", "efa:node0.rail0=0.3"), factor=1.4)
    assert health.examine(sick, target, baseline=good).suspects[0].kind == "rail"


LARGE = [1 << bits for bits in (20, 22, 24, 26, 28, 30)]


def table(of, sizes, noise=0.01):
    draw = np.random.default_rng(3)
    return [Measured(s, of.row(s).microseconds * float(np.exp(noise * draw.standard_normal()))) for s in sizes]


def test_a_card_at_three_quarters_is_named_though_no_size_is_far_off():
    """It costs an all-reduce over all ranks four percent."""
    well, sick = bench("2xtrn1.32xlarge"), bench("2xtrn1.32xlarge", "efa:node0.rail3=0.75")
    found = health.examine(table(sick, LARGE), well, baseline=table(well, LARGE, 0))
    assert not any(found.off)
    assert not found.healthy
    assert found.suspects[0].kind == "rail"
    assert found.suspects[0].severity == pytest.approx(0.75, rel=0.05)
    assert found.suspects[0].share > 0.5 > found.well
    unknown = health.examine(table(sick, LARGE), well)  # without a baseline it may as well be what the model misses
    assert unknown.healthy
    assert not unknown.sure
    assert unknown.suspects[0].kind == "rail"
    assert unknown.advice is not None


def test_a_table_that_cannot_show_a_slow_card_says_so_and_proposes_one_that_can():
    """All sizes together, small ones too, are 3 % off: what a healthy table may be by itself."""
    of, sick = bench("2xtrn1.32xlarge"), bench("2xtrn1.32xlarge", "efa:node0.rail3=0.75")
    found = health.examine(table(sick, [1 << bits for bits in range(13, 30, 2)], 0), of)
    assert found.healthy
    assert not found.sure
    assert {each.kind: len(each.parts) for each in found.unseen} == {"rail": 8, "link": 32}
    assert all(0 < each.off < health.SPREAD for each in found.unseen)
    slow, well = (microseconds for _, microseconds in found.advice.outcomes)
    here = replace(sick, operation="permute", pairs=found.advice.pairs)
    assert here.row(found.advice.size).microseconds == pytest.approx(slow)
    assert slow / well == pytest.approx(4 / 3, rel=0.01)
    named = health.examine(table(here, LARGE), replace(of, operation="permute", pairs=found.advice.pairs))
    assert "efa:node0.rail3" in named.suspects[0].parts
    assert named.suspects[0].severity == pytest.approx(0.75, rel=0.05)


def test_a_test_of_cards_alone_leaves_no_card_unseen():
    of = bench("2xtrn1.32xlarge")
    pairs = health.examine(table(of, SIZES, 0), of).advice.pairs
    found = health.examine(
        table(replace(of, operation="permute", pairs=pairs), LARGE), replace(of, operation="permute", pairs=pairs)
    )
    assert found.healthy
    assert not [each for each in found.unseen if each.kind == "rail"]


def test_alike_parts_are_held_against_each_other_where_the_model_is_off():
    """Every card has 0.7 of the predicted rate: one half of the cards is the baseline of the other."""
    every = [f"efa:node{node}.rail{card}" for node in range(2) for card in range(8)]
    rates = {name: 0.7 * (0.75 if name == "efa:node0.rail3" else 1) for name in every}
    of, sick = bench("2xtrn1.32xlarge"), bench("2xtrn1.32xlarge", *(f"{n}={r}" for n, r in rates.items()))
    advice = health.examine(table(of, SIZES, 0), of).advice
    mine, others = (table(replace(sick, operation="permute", pairs=p), LARGE) for p in (advice.pairs, advice.others))
    asked = replace(of, operation="permute", pairs=advice.pairs)
    first = health.examine(mine, asked, baseline=others).suspects[0]
    assert first.kind == "rail"
    assert "efa:node0.rail3" in first.parts
    assert first.severity == pytest.approx(0.75, rel=0.05)


def test_shares_of_all_that_was_thought_of_are_one_at_most():
    sick = bench("2xtrn1.32xlarge", "efa:node0.rail3=half")
    found = health.examine(table(sick, SIZES), bench("2xtrn1.32xlarge"))
    assert 0.95 < sum(suspect.share for suspect in found.suspects) + found.well <= 1 + 1e-9
    assert found.sure


@pytest.mark.parametrize(
    ("sick", "kinds"),
    [
        (("efa:node0.rail3=half", "link:node0.0-4=half"), ["link", "rail"]),
        (("efa:node1.rail0=0.3", "link:node0.5-6=quarter"), ["link", "rail"]),
    ],
)
def test_two_faults_at_once_are_both_named(sick, kinds):
    found = health.examine(table(bench("2xtrn1.32xlarge", *sick), SIZES), bench("2xtrn1.32xlarge"))
    first = found.suspects[0]
    assert sorted(each.kind for each in first.both) == kinds
    left = {"half": 0.5, "quarter": 0.25}
    for each in first.both:
        wanted = next(
            part.split("=")[1] for part in sick if part.startswith("efa" if each.kind == "rail" else "link")
        )
        assert each.severity == pytest.approx(left.get(wanted) or float(wanted), rel=0.15)
    assert found.explained


def test_a_slow_card_of_a_cluster_whose_launches_are_late_is_found():
    late = bench("2xtrn1.32xlarge", "efa:node0.rail3=half", launch=60_000)
    first = health.examine(table(late, SIZES), bench("2xtrn1.32xlarge")).suspects[0]
    assert [each.kind for each in first.both] == ["rail", "latency"]


@pytest.mark.parametrize(
    ("target", "sick", "part", "tests"),
    [
        ("2xtrn1.32xlarge", "efa:node0.rail2=half", "efa:node0.rail2", 3),
        ("trn2.48xlarge", "link:1-5=half", "link:1-5", 5),
    ],
)
def test_the_tests_that_are_proposed_find_one_part_of_all_alike(target, sick, part, tests):
    """Each halves what is left; a test that the part is not in takes what a healthy one takes."""
    of, on = bench(target), bench(target, sick)
    found = health.examine(table(on, SIZES), of)
    for _ in range(tests):
        assert part in found.suspects[0].parts
        advice = found.advice
        slow, well = (microseconds for _, microseconds in advice.outcomes)
        healthy, here = (replace(b, operation="permute", pairs=advice.pairs) for b in (of, on))
        assert healthy.row(advice.size).microseconds == pytest.approx(well)
        if here.row(advice.size).microseconds == pytest.approx(well):  # it is another
            healthy, here = (replace(b, pairs=advice.others) for b in (healthy, here))
        assert here.row(advice.size).microseconds == pytest.approx(slow, rel=0.1)
        found = health.examine(table(here, LARGE), healthy)
    assert found.suspects[0].parts == (part,)
    assert found.advice is None


def test_suspects_of_two_kinds_have_a_test_that_tells_them_apart():
    """One large size alone: a wire or a card."""
    of, on = bench("2xtrn1.32xlarge"), bench("2xtrn1.32xlarge", "efa:node0.rail3=half")
    found = health.examine(table(on, [1 << 26], 0), of)
    assert not found.sure
    times = [microseconds for _, microseconds in found.advice.outcomes]
    assert abs(np.log(times[0] / times[1])) > 3 * health.SPREAD


def trnlab(capsys, *arguments):
    status = command.main(["fabric", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_command_reads_what_the_tool_writes(capsys, tmp_path, form):
    """What `fabric test` wrote of a healthy and of a sick network, in the form that it is told in."""
    for fault, wanted in (([], 0), (["--fault", "efa:node0.rail3=half"], 1)):
        file = tmp_path / "real.json"
        _, out, _ = trnlab(
            capsys,
            "test",
            "allr",
            "--target",
            "2xtrn1.32xlarge",
            "-b",
            "1M",
            "-e",
            "1G",
            "-f",
            "32",
            "-d",
            "fp32",
            *fault,
            "--report-to-json-file",
            file,
        )
        if form == "text":
            file.write_text("some banner\n" + out)
        asked = ["health", file, "--target", "2xtrn1.32xlarge", "-d", "fp32", *(["--json"] if form == "json" else [])]
        status, out, _ = trnlab(capsys, *asked)
        assert status == wanted
        if form == "text":
            assert ("not healthy" in out) == bool(wanted)
        else:
            assert json.loads(out)["healthy"] == (not wanted)
            assert not wanted or "efa:node0.rail3" in json.loads(out)["suspects"][0]["parts"]


NO_RESULTS = (
    "",
    "{}",
    "[]",
    "no table",
    '{"results": [{"size(B)": 8}]}',
    "size(B) x\n8 9\n",
    '{"results": [{"size(B)": 8, "time:avg(us)": 0}]}',
    "size(B) time:avg(us)\n",
)


@pytest.mark.parametrize("text", NO_RESULTS)
def test_files_without_results_are_refused(capsys, tmp_path, text):
    file = tmp_path / "real.json"
    file.write_text(text)
    status, _, err = trnlab(capsys, "health", file, "--target", "trn1.32xlarge")
    assert status == 2
    assert "TRN188" in err
