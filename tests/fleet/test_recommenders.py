# SPDX-License-Identifier: Apache-2.0
"""Recommendation models: counted as published, tables divided by rows, networks on each rank."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from trnlab import chips
from trnlab.cli.main import main
from trnlab.errors import UsageError
from trnlab.fabric.cluster import Cluster
from trnlab.fleet import Question, plan
from trnlab.fleet.comparison.contenders import gpu_contender, work_of
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.models.configurations import from_config, model
from trnlab.fleet.search.layout import pinned
from trnlab.fleet.search.tables import UNEVEN, WHOLE, Tables, network
from trnlab.graph.flops import model_flops
from trnlab.graph.interpret import interpret
from trnlab.numerics.dtypes import float32
from trnlab.runtime.session import Session

SMALL = {
    "model_type": "dlrm",
    "num_dense_features": 4,
    "embedding_dim": 16,
    "dense_arch_layer_sizes": [32, 16],
    "over_arch_layer_sizes": [32, 1],
    "num_embeddings_per_feature": [20000, 9001, 5],
    "epoch": 1000000,
}
TARGET = "trn1.2xlarge"


@pytest.fixture(scope="module")
def tables():
    session = Session(chips.target(TARGET), precision="bf16")
    return Tables(Cluster(session.target, 1), Programs(session), Exchange(session.target))


def test_parameters_are_those_that_are_published():
    """MLPerf's: 187,767,399 rows of 128, and networks 13-512-256-128 and 479-1024-1024-512-256-1 with biases."""
    found = model("dlrm")
    assert sum(found.rows) == 187_767_399
    assert found.parameters == 187_767_399 * 128 + 2_368_897
    assert (found.bottom, found.top) == ((13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1))
    assert (found.unit, found.counted, found.epoch) == ("samples", "samples", 4_195_197_692)
    assert len(found.divided) == 13
    assert sum(found.short) == 19_660


def test_what_is_counted_is_what_the_graph_has():
    small = from_config(SMALL, "small")
    assert model_flops(network(small, 8, float32).graph) / 8 == small.flops_per_token(1)


def test_the_way_back_of_the_networks():
    """Gradients of rows against differences of the loss."""
    small = from_config(SMALL, "small")
    graph, rng = network(small, 3, float32).graph, np.random.default_rng(0)
    given = [
        rng.integers(0, 5, v.shape).astype(np.int32)
        if v.dtype.name == "int32"
        else rng.standard_normal(v.shape).astype(np.float32) * 0.3
        for v in graph.inputs
    ]
    lent = next(i for i, v in enumerate(graph.inputs) if v.shape == (3, 2, 16))
    back = next(i for i, v in enumerate(graph.outputs) if v.shape == (3, 2, 16))
    gradient = interpret(graph, given)[back]
    for place in ((0, 0, 3), (2, 1, 15)):
        losses = []
        for step in (0.02, -0.02):
            moved = [x.copy() for x in given]
            moved[lent][place] += step
            losses.append(float(interpret(graph, moved)[0]))
        assert (losses[0] - losses[1]) / 0.04 == pytest.approx(float(gradient[place]), rel=0.02, abs=1e-5)


def test_tables_are_divided_by_rows(tables):
    small = from_config(SMALL, "small")
    assert tables.rows(small) == 10_000 + 4_501
    found = tables.search(small, 512).steps.step(0)
    assert found.bytes["tables"] == 14_501 * 16 * 4
    assert found.bytes["gradients"] == 4 * small.everywhere
    assert found.tokens == 512
    assert found.flops == 512 * small.flops_per_token(1)
    assert found.seconds["rows"] > 0
    assert found.seconds["gradients"] > 0


def test_more_rows_take_longer_to_read_and_to_add_to(tables):
    """128 of them are one transfer of each kind: as many more take as much more."""
    small = from_config(SMALL, "small")
    read, added = zip(*(tables.looked_up(small, 128 * n) for n in (4, 8, 16)))
    for times in (read, added):
        assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0]), rel=0.3)
        assert times[1] > times[0] > 0


def test_what_has_no_room_says_how_much_is_missing():
    """96.1 GB of rows on two cores of 16 GiB."""
    with pytest.raises(UsageError, match="TRN174") as caught:
        plan(Question(model("dlrm"), 1e6, (TARGET,), (1, 1), batch=1024)).chosen  # noqa: B018
    rows = 187_747_739 / 2 * 512
    lacks = rows + model("dlrm").everywhere * 6 - 2**34
    assert f"lacks {lacks / 2**30:.3g} GiB of 16 GiB" in str(caught.value)


@pytest.mark.parametrize(("batch", "layout", "why"), [(31, "", UNEVEN), (32, "tp=2", WHOLE), (32, "mb=4", WHOLE)])
def test_there_is_one_way_to_divide_a_step(batch, layout, why):
    asked = Question(from_config(SMALL, "small"), 1e6, (TARGET,), (1, 1), batch=batch, fixed=pinned(layout))
    assert list(plan(asked).refused) == [why]


REFUSED = [
    ({"interaction_type": "dcn"}, "TRN586", "'dcn'"),
    ({"multi_hot_sizes": [3, 2, 1]}, "TRN586", "[3, 2, 1]"),
    ({"dense_arch_layer_sizes": [32, 8]}, "TRN172", "end in 8 and 1"),
    ({"num_embeddings_per_feature": [5, 6]}, "TRN172", "nothing to divide"),
]


@pytest.mark.parametrize(("changed", "code", "said"), REFUSED)
def test_forms_that_are_not_planned(changed, code, said):
    with pytest.raises(UsageError, match=code) as caught:
        from_config(SMALL | changed, "small")
    assert said in str(caught.value)


def test_nothing_is_published_of_them_on_gpus():
    side = gpu_contender(work_of(model("dlrm"), 65536), "p5.48xlarge", 1)
    assert not side.known
    assert "nothing is published for a network with tables of embeddings" in side.basis[0]


def test_plans_and_bakeoffs_are_told_in_samples(tmp_path, capsys):
    file, page = tmp_path / "small.yaml", tmp_path / "plan.html"
    file.write_text(yaml.safe_dump(SMALL))
    common = ["--target", TARGET, "--instances", "1", "--global-batch", "64", "--cache", str(tmp_path / "cache")]
    assert main(["plan", str(file), "--epochs", "3", *common, "--page", str(page)]) == 0
    text = capsys.readouterr().out
    for words in ("3 M samples in steps of 64 samples", "samples/s", "$/epoch", "lookups", "2 of 3 divided by rows"):
        assert words in text
    assert "1 layouts were looked at, 1 fit\n" in text  # and no others follow
    assert "lookups" in page.read_text()
    assert "--sequence" not in page.read_text().split("<code>")[1].split("</code>")[0]
    assert main(["plan", str(file), "--samples", "3M", *common, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"]["bytes"]["tables"] == 14_501 * 16 * 4
    assert found["question"]["counted"] == "samples"
    asked = ["bakeoff", str(file), "--a", TARGET, "--b", "p5.48xlarge", "--batch", "64", "--no-cache", "--json"]
    assert main(asked) == 0
    ours, theirs = json.loads(capsys.readouterr().out)["sides"]
    assert ours["per_s"]["value"] > 0
    assert theirs["per_s"]["value"] is None
