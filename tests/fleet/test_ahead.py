# SPDX-License-Identifier: Apache-2.0
"""Searches whose programs others compile: the same plans, whoever compiles."""

from __future__ import annotations

from argparse import Namespace
from concurrent.futures import Executor, Future
from dataclasses import replace

import pytest

from trnlab import chips
from trnlab.cli.main import main
from trnlab.cli.planning.executors import helpers
from trnlab.fabric.cluster import Cluster
from trnlab.fleet import Question, plan
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.report.table import to_json
from trnlab.fleet.search.prefetch import CompilePool
from trnlab.fleet.search.steps import Planner
from trnlab.runtime.session import Session

SMALL = Model("small", 128, ((2, Block(128, Attention(2, 2, 64, 64), Dense(256))),), 128, 512)
ASKED = Question(SMALL, 1e9, ("trn1.2xlarge",), (1, 1), batch=16, fixed={"microbatch": 1})


class Here(Executor):
    """Works when it is asked for a result, or never."""

    def __init__(self, lazy=False):
        self.asked, self.lazy = [], lazy

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        self.asked.append((args, future))
        if not self.lazy:
            future.set_result(fn(*args, **kwargs))
        return future


@pytest.fixture(scope="module")
def alone():
    return plan(ASKED)


def test_an_executor_changes_nothing_of_a_plan(alone):
    executor, came = Here(), []
    found = plan(ASKED, pool=CompilePool(executor, 2), came=lambda so_far: came.append(len(so_far)))
    assert executor.asked
    assert to_json(found) == to_json(alone)
    assert found.compiled >= alone.compiled
    assert came == [len(found)]


def test_who_hears_of_a_plan_changes_nothing_of_it():
    """What is shown after the first cluster is not what stays."""
    asked = replace(
        ASKED, targets=("trn1.32xlarge",), instances=(1, 2), batch=64, fixed={"microbatch": 1, "tensor": 2}
    )
    heard = []
    found = plan(asked, came=lambda so_far: heard.append((len(so_far), so_far.best(1), so_far.front)))
    assert [count for count, _, _ in heard] == [len(found.tables[0].days), len(found)]
    assert {c.cluster.instances for c in found.best(len(found))} == {1, 2}
    assert to_json(found) == to_json(plan(asked))


def test_what_is_known_is_not_asked_for(tmp_path, alone):
    plan(ASKED, tmp_path)
    executor = Here()
    again = plan(ASKED, tmp_path, pool=CompilePool(executor, 2))
    assert not executor.asked
    assert again.compiled == 0
    assert to_json(again) == to_json(alone)


def test_no_more_is_asked_for_than_there_are_workers():
    executor = Here(lazy=True)
    ahead = CompilePool(executor, 1)
    for name in ("trn1.2xlarge", "trn2.3xlarge"):
        session = Session(chips.target(name))
        planner = Planner(Cluster(session.target, 1), Programs(session), Exchange(session.target))
        ahead.enqueue(planner, ASKED.training, {})
    assert len(executor.asked) == 1
    ahead.end()
    assert executor.asked[0][1].cancelled()


def test_on_two_processes(tmp_path, capsys):
    config = tmp_path / "small.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, '
        '"intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 128}'
    )
    common = [
        "plan",
        str(config),
        "--tokens",
        "1G",
        "--target",
        "trn1.2xlarge",
        "--instances",
        "1",
        "--no-cache",
        "--global-batch",
        "16",
    ]
    assert main([*common, "--jobs", "2"]) == 0
    many = capsys.readouterr()
    assert "is compiled" in many.err
    assert "cheapest so far" in many.err
    assert main(common) == 0
    assert capsys.readouterr().out == many.out


def test_on_a_dask_cluster_of_two_workers(alone):
    """As a user meets it: workers are processes, the command knows the scheduler's address."""
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    patient = {"distributed.comm.timeouts.connect": "600s", "distributed.comm.timeouts.tcp": "600s"}
    with (
        dask.config.set(patient),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        helpers(Namespace(executor=f"dask://{cluster.scheduler_address.removeprefix('tcp://')}")) as ahead,
    ):
        assert ahead.workers == 2
        found = plan(ASKED, pool=ahead)
    assert to_json(found) == to_json(alone)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--jobs", "0"], "from 1 to"),
        (["--executor", "ray://x"], "dask://HOST:PORT"),
        (["--executor", "dask://"], "dask://HOST:PORT"),
    ],
)
def test_executors_that_there_are_not(options, said, capsys):
    assert main(["plan", "llama3-8b", "--tokens", "1T", "--target", "trn1.32xlarge", *options]) == 2
    err = capsys.readouterr().err
    assert ("TRN569" if "--jobs" in options else "TRN178") in err
    assert said in err
