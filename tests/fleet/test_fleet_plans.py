# SPDX-License-Identifier: Apache-2.0
"""Plans: searched whole, the same each time, better with more of anything, and refused with the reason."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from trnlab import documents
from trnlab.cli.main import main
from trnlab.errors import UsageError
from trnlab.fleet import Question, plan
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.report.document import document
from trnlab.fleet.report.table import candidate, to_csv, to_json
from trnlab.fleet.search import pipeline as pipes
from trnlab.fleet.search.layout import Layout, padding, pinned
from trnlab.fleet.search.steps import CAUSES, CLASSES

SMALL = Model("small", 256, ((4, Block(256, Attention(4, 2, 64, 64), Dense(512))),), 256, 1024)


def text(plan):
    return documents.text(document(plan))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


def _asked(**changes):
    return replace(Question(SMALL, 1e9, ("trn1.32xlarge",), (1, 2), batch=128, fixed={"microbatch": 1}), **changes)


@pytest.fixture(scope="module")
def found(folder):
    return plan(_asked(), folder)


def test_every_layout_is_counted_once(found):
    """Those that fit and those of each reason are all that were looked at."""
    assert len(found) + sum(found.refused.values()) == found.looked_at
    assert len(found) > 50


def test_the_same_question_has_the_same_answer_with_and_without_what_was_kept(found, folder):
    again, cold = plan(_asked(), folder), plan(_asked())
    assert again.compiled == 0 < cold.compiled == found.compiled
    assert to_json(again) == to_json(cold) == to_json(found)


def test_causes_and_classes_add_up(found):
    for c in found.best(20):
        assert c.step.total == pytest.approx(sum(c.step.seconds[cause] for cause in CAUSES))
        assert sum(c.step.bytes[name] for name in CLASSES) <= c.step.room
        assert 0 < c.step.mfu < 1


def test_the_front_is_of_candidates_that_no_other_beats(found):
    front = [(c.bill.days, c.bill.usd) for c in found.front]
    assert front == sorted(front)
    assert [usd for _, usd in front] == sorted((usd for _, usd in front), reverse=True)
    for c in found.best(len(found)):
        assert not any(c.bill.days < days and c.bill.usd < usd for days, usd in front)


def test_a_pinned_layout_is_the_one_that_is_planned(folder):
    fixed = pinned("tp=4,pp=2,mb=1,vp=1,zero=1,recompute=full,overlap=1")
    pin = plan(_asked(fixed=fixed, instances=(1, 1)), folder)
    assert pin.looked_at == 1
    assert pin.chosen.step.layout == Layout(4, 2, 4, 1, recompute="full")
    assert pinned(pin.chosen.step.layout.spelled()) == fixed | {"data": 4, "context": 1, "expert": 1}


def test_attention_and_networks_are_as_the_layout_says(folder):
    """Programs of their own; of 256 tokens a kernel is no quicker than scores in memory."""
    one = "tp=1,pp=1,mb=1,zero=1,overlap=1,recompute=none"

    def step(more):
        return plan(_asked(fixed=pinned(one + more), instances=(1, 1)), folder).chosen.step

    kernel, written, again, network = map(step, ("", ",attention=written", ",attention=again", ",network=again"))
    assert kernel.total != written.total < again.total
    assert kernel.total < network.total
    assert written.layout.attention == "written"
    assert written.layout.spelled().endswith("attention=written")
    assert str(network.layout).endswith("network again")
    assert pinned(network.layout.spelled())["network"] == 1


def test_heads_that_ranks_do_not_divide_are_filled_up_and_it_is_said(folder):
    """Five heads on four ranks are two on each; three ranks more than the heads allow are asked for, or are none."""
    odd = replace(SMALL, stacks=((2, Block(320, Attention(5, 5, 64, 64), Dense(512))),), hidden=320)
    found = plan(_asked(model=odd, fixed=pinned("tp=4,mb=1,pp=1,zero=1"), instances=(1, 1)), folder)
    assert found.chosen.padding == [(5, 8)]
    assert candidate(found.chosen)["padded_heads"] == [{"heads": 5, "filled_up_to": 8}]
    assert "5 heads are filled up to 8, 2 on each of 4 ranks" in text(found)
    whole = plan(_asked(model=odd, fixed=pinned("tp=1,mb=1,pp=1,zero=1"), instances=(1, 1)), folder).chosen.step
    assert found.chosen.step.flops == pytest.approx(whole.flops, rel=1e-6)
    assert padding(odd, 1) == []
    searched = plan(_asked(model=odd, fixed=pinned("mb=1,pp=1,zero=1"), instances=(1, 1)), folder)
    assert 4 not in {int(n) for table in searched.tables for n in table.steps.layouts["tensor"]}


def test_of_a_deadline_the_cheapest_in_time_is_taken(found, folder):
    soonest = found.front[0].bill.days
    tight = plan(_asked(deadline=soonest * 1.01 * 86400), folder)
    assert tight.chosen.bill.days <= soonest * 1.01
    assert tight.chosen.bill.usd >= found.chosen.bill.usd


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"deadline": 1.0}, "TRN175", "times as long"),
        ({"fixed": pinned("tp=3")}, "TRN174", "do not divide the network"),
        ({"fixed": pinned("dp=5")}, "TRN174", "does not use all ranks"),
        ({"batch": 7, "instances": (1, 1), "fixed": pinned("dp=8")}, "TRN174", "the batch is not divided"),
    ],
)
def test_what_cannot_be_says_why(changes, code, said, folder):
    with pytest.raises(UsageError, match=code) as caught:
        plan(_asked(**changes), folder).chosen  # noqa: B018
    assert said in str(caught.value)


def test_a_model_that_is_too_large_names_the_nearest_and_what_would_do(folder):
    huge = replace(SMALL, stacks=((45_540, SMALL.stacks[0][1]),))
    with pytest.raises(UsageError, match="TRN174") as caught:
        plan(_asked(model=huge, instances=(1, 1), fixed=pinned("tp=4,mb=1,recompute=full")), folder).chosen  # noqa: B018
    assert "lacks" in str(caught.value)
    assert "at least" not in str(caught.value)
    assert "2xtrn1.32xlarge fits" in str(caught.value)


BLOCK = Block(8192, Attention(64, 8, 128, 128), Dense(28672))


@pytest.mark.parametrize(
    ("target", "fixed", "lacks", "way_out"),
    [
        (
            "trn1.32xlarge",
            {},
            "MB1 ZeRO-3 on trn1.32xlarge lacks at least",
            "--target trn1.32xlarge --instances 8: with TP2",
        ),
        (
            "trn1.2xlarge",
            {},
            "MB1 ZeRO-3 on trn1.2xlarge lacks at least",
            "--target trn2.48xlarge --instances 2: with TP1",
        ),
        ("trn1.2xlarge", pinned("tp=1,pp=1,dp=2,zero=0"), "DP2 MB1 on trn1.2xlarge lacks", "give less of --layout"),
    ],
)
def test_where_weights_alone_do_not_fit_nothing_is_compiled(target, fixed, lacks, way_out, monkeypatch):
    """What is at least needed says enough, in seconds; so does what would have room."""
    monkeypatch.setattr(Programs, "stage", None)
    large = replace(SMALL, stacks=((80, BLOCK),), sequence=4096)
    found = plan(_asked(model=large, tokens=1e12, targets=(target,), instances=(1, 1), fixed=fixed))
    assert found.compiled == 0
    assert sum(found.refused.values()) == found.looked_at
    with pytest.raises(UsageError, match="TRN174") as caught:
        found.chosen  # noqa: B018
    assert lacks in str(caught.value)
    assert way_out in str(caught.value)


def test_what_is_at_least_needed_is_what_the_parameters_take():
    large = replace(SMALL, stacks=((80, BLOCK),), sequence=4096)
    found = plan(_asked(model=large, tokens=1e12, targets=("trn1.2xlarge",), instances=(1, 1)))
    cluster, needed = found.least
    assert cluster.ranks == needed.layout.data == 2
    assert needed.bytes == pytest.approx(large.parameters * 18 / 2)  # weights twice, gradients, mean, square
    assert needed.lacks == needed.bytes - needed.room > 0


CONTRADICTIONS = [{"tokens": 100.0}, {"precision": "fp8"}, {"targets": ()}]


@pytest.mark.parametrize("changes", CONTRADICTIONS)
def test_questions_that_contradict_themselves(changes):
    with pytest.raises(UsageError, match="TRN178"):
        _asked(**changes)


@pytest.mark.parametrize("text", ["tp", "tp=0", "xx=1", "zero=2", "recompute=some", "tp=a", "overlap=2"])
def test_layouts_that_cannot_be_read(text):
    with pytest.raises(UsageError, match="TRN177"):
        pinned(text)


def test_what_is_printed_and_written(found):
    said = text(found)
    assert "none published for trn1.32xlarge" not in said.split("reserved")[0]
    assert found.chosen.cluster.name in said
    rows = list(csv.DictReader(io.StringIO(to_csv(found, 5))))
    assert [float(row["days"]) for row in rows] == [c.bill.days for c in found.best(5)]
    assert json.loads(json.dumps(to_json(found)))["chosen"] == json.loads(json.dumps(candidate(found.chosen)))


def test_on_the_command_line(tmp_path, capsys):
    file = tmp_path / "tiny.json"
    sizes = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 1024,
        "max_position_embeddings": 256,
    }
    file.write_text(json.dumps(sizes))
    asked = [
        "plan",
        str(file),
        "--tokens",
        "1B",
        "--target",
        "trn2.48xlarge",
        "--instances",
        "1",
        "--global-batch",
        "64",
        "--layout",
        "tp=4,pp=1",
        "--cache",
        str(tmp_path),
    ]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "on-demand" in said
    assert "none published for trn2.48xlarge" in said
    assert main([*asked, "--json", "--csv", str(tmp_path / "all.csv")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["chosen"]["layout"].startswith("tp=4,pp=1,dp=16")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == answer["fit"] + 1


SHAPES = [(4, 16, 1), (8, 64, 1), (8, 4, 1), (16, 64, 1), (4, 16, 2), (8, 16, 4)]


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), SHAPES)
@pytest.mark.parametrize("send", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("last", [1.0, 1.5])
def test_the_formula_of_pipelines_is_the_simulation(ranks, microbatches, chunks, send, last):
    stages = [1.0] * (ranks * chunks - 1) + [last]
    run = pipes.simulate(pipes.Times(stages, [2 * s for s in stages], send), ranks, microbatches)
    one = np.array([3 * s for s in stages])[None]
    total = pipes.total(one, ranks, np.array([microbatches]), np.array([send]))[0]
    assert total == pytest.approx(run.total, rel=0.01)
    assert tuple(pipes.held(ranks, np.array([microbatches]), chunks)[0]) == run.held
