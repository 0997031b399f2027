# SPDX-License-Identifier: Apache-2.0
"""`trnlab estimate --target 4xtrn2.48xlarge`: one rank is followed alone, and its collectives are those of all."""

from __future__ import annotations

import json
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_common

from trnlab.cli import main as command
from trnlab.collectives import Collective
from trnlab.fabric.world import world_of
from trnlab.frontends.torch.check.ranks import Chunks

pytestmark = pytest.mark.torch

HEAD = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from trnlab.frontends.torch import compile_step
{begin}
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to("neuron")
{wrap}
step = compile_step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x, y: ((m(x){around} - y) ** 2).mean())
for _ in range(2):
    x, y = (torch.randn(32, 64).to("neuron") for _ in range(2))
    step(x, y)
dist.destroy_process_group()
"""
WEIGHTS = (64 * 256 + 256 + 256 * 64 + 64) * 4
REPLICA = {
    "begin": 'dist.init_process_group("neuron")',
    "wrap": "model = DistributedDataParallel(model)",
    "around": "",
}


def estimate(capsys, tmp_path, parts, *arguments):
    script = tmp_path / "train.py"
    script.write_text(HEAD.format(**parts))
    status = command.main(
        ["estimate", "--stack", "ours", "--json", "--cache", str(tmp_path / "cache"), *arguments, str(script)]
    )
    out = capsys.readouterr()
    return status, json.loads(out.out) if status == 0 else out.out + out.err


def test_gradients_of_replicas_cost_what_the_fabric_says(capsys, tmp_path):
    status, report = estimate(capsys, tmp_path, REPLICA, "--target", "4xtrn2.48xlarge")
    assert status == 0, report
    job = report["targets"][0]["job"]
    assert (job["cluster"], job["ranks"], job["batches"]) == ("4xtrn2.48xlarge", 256, 256)
    talk = job["communication"]["purposes"]["gradient"]
    assert job["communication"]["kinds"]["all_reduce"] == talk
    assert talk["bytes"] == WEIGHTS
    world = world_of("4xtrn2.48xlarge", 256)
    one = world.cost(Collective("all_reduce", (tuple(range(256)),)), WEIGHTS).seconds
    assert talk["time_s"] == pytest.approx(one, rel=1e-6)
    assert 0 <= talk["exposed_s"] <= talk["time_s"] <= report["targets"][0]["step_s"]
    assert job["communication"]["flagged"] == (talk["time_s"] > 0.25 * job["step_s"])
    assert job["communication"]["links"]["EFA"]["class_bytes"] > 0
    assert job["per_s"] == pytest.approx(32 * 256 / job["step_s"])
    assert job["usd_per_step"] == pytest.approx(4 * report["targets"][0]["usd_per_hour"] * job["step_s"] / 3600)
    assert report["targets"][0]["capacity"] == 24 << 30


@pytest.mark.parametrize(
    "begin",
    [
        "dist.init_process_group()",
        'import os; dist.init_process_group(rank=int(os.environ["RANK"]))',
        'dist.device_mesh.init_device_mesh("neuron", (8, 4))',
    ],
)
def test_a_script_of_ranks_gets_all_of_the_instance(capsys, tmp_path, begin):
    """Where it asks which rank it is, and nobody said so; what is kept is found by the rank that is followed."""
    followed = (("0", False), ("7", False), ("7", True))
    for rank, cached in followed if begin.startswith("dist.init") else followed[:1]:
        arguments = ("--target", "trn1.32xlarge", "--rank", rank)
        status, report = estimate(capsys, tmp_path, REPLICA | {"begin": begin}, *arguments)
        assert status == 0, report
        assert report["cached"] == cached
        job = report["targets"][0]["job"]
        assert (job["cluster"], job["ranks"], job["rank"], job["batches"]) == ("trn1.32xlarge", 32, int(rank), 32)
        assert job["communication"]["purposes"]["gradient"]["bytes"] == WEIGHTS
        assert any("gets all 32 of trn1.32xlarge" in note for note in report["notes"])


def test_check_and_compile_give_a_script_of_ranks_the_instance_too(capsys, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(HEAD.format(**REPLICA))
    given = ["--target", "trn1.2xlarge", "--cache", str(tmp_path / "cache"), str(script)]
    assert command.main(["check", *given]) == 0
    assert "trn1.2xlarge, 2 ranks, as rank 0 does it" in capsys.readouterr().out
    assert command.main(["compile", *given]) == 0
    said = capsys.readouterr().out  # what stands beside the step is recorded, and is a program as well
    assert [line.split()[1] for line in said.splitlines() if line.endswith("in the cache")] == ["train_step"]


def test_a_script_of_ranks_is_told_that_it_has_one_target(capsys, tmp_path):
    """One that can do without ranks is followed so, on one target or on several."""
    status, said = estimate(capsys, tmp_path, REPLICA, "--target", "trn1.32xlarge,trn2.48xlarge")
    assert status == 1
    (finding,) = json.loads(said)["findings"]
    assert (finding["code"], finding["place"]["line"]) == ("TRN575", 7)
    assert "trn1.32xlarge alone, whose 32 ranks" in finding["do"]
    begin = """
import os, types
if "RANK" in os.environ:
    dist.init_process_group()
else:
    dist = types.SimpleNamespace(destroy_process_group=lambda: None)
"""
    alone = {"begin": begin, "wrap": "", "around": ""}
    status, report = estimate(capsys, tmp_path, alone, "--target", "trn1.32xlarge")
    assert (status, report["targets"][0]["job"]) == (0, None)


def test_a_kept_report_answers_with_other_batches_and_flag(capsys, tmp_path):
    for options, batches, flagged in (([], 256, True), (["--batches", "8", "--comm-threshold", "0.99"], 8, False)):
        status, report = estimate(capsys, tmp_path, REPLICA, "--target", "4xtrn2.48xlarge", *options)
        assert status == 0
        job = report["targets"][0]["job"]
        assert job["communication"]["flagged"] == flagged
        assert job["per_s"] == pytest.approx(32 * batches / job["step_s"])
    assert report["cached"]


def test_a_sick_network_is_told_beside_the_healthy_one(capsys, tmp_path):
    for fault, ends in (("efa:node1.rail3=0.1", True), ("efa:node1.rail3=down", False)):
        status, report = estimate(capsys, tmp_path, REPLICA, "--target", "2xtrn1.32xlarge", "--fault", fault)
        assert status == 0, report
        job = report["targets"][0]["job"]
        assert (job["sick"]["faults"], job["sick"]["healthy_s"]) == ([fault], job["step_s"])
        (slowed,) = job["sick"]["slowed"]
        assert slowed["healthy_s"] == pytest.approx(job["communication"]["kinds"]["all_reduce"]["time_s"])
        assert slowed["link"].startswith("efa:node1.rail3")
        assert (job["sick"]["sick_s"] is not None) == ends
        assert not ends or job["sick"]["sick_s"] > job["step_s"]
    status, said = estimate(
        capsys, tmp_path, REPLICA, "--target", "2xtrn1.32xlarge", "--fault", "efa:node1.rail9=down"
    )
    assert (status, "TRN184" in said) == (2, True)


def test_what_helps_and_what_degrades_is_told_of_the_whole_step_of_a_host_that_traces(capsys, tmp_path):
    """Gains are of the step that the report tells, and no waits of the host are among them."""
    found = {}
    for fault in ((), ("--fault", "efa:node1.rail3=0.1")):
        status, report = estimate(
            capsys, tmp_path, REPLICA, "--target", "2xtrn1.32xlarge", "--stack", "vendor", *fault
        )
        assert status == 0, report
        (target,) = report["targets"]
        assert target["step_s"] == pytest.approx(sum(target["parts"].values()), rel=0.05)
        found[fault] = target
    healthy, degraded = found.values()
    step_s, host_s = healthy["step_s"], healthy["parts"]["host"]
    assert host_s > 0.5 * step_s
    timed = [each for each in healthy["job"]["communication"]["remedies"] if each["step_s"] is not None]
    assert timed
    for each in timed:
        assert each["step_s"] > host_s
        assert each["gain"] == pytest.approx(1 - each["step_s"] / step_s)
    assert degraded["job"]["sick"]["healthy_s"] == pytest.approx(step_s)
    assert degraded["job"]["sick"]["sick_s"] > step_s


def test_more_instances_take_longer_to_reduce(capsys, tmp_path):
    """With as much computation: the programs differ in their collectives alone."""
    times = []
    for target in ("2xtrn1.32xlarge", "8xtrn1.32xlarge"):
        _, report = estimate(capsys, tmp_path, REPLICA, "--target", target)
        times.append(report["targets"][0]["job"]["communication"]["kinds"]["all_reduce"]["time_s"])
    assert times[0] < times[1]


@pytest.mark.parametrize(
    "begin",
    [
        "dist.init_process_group()",
        'dist.init_process_group("gloo", rank=3, world_size=4)',
        'dist.init_process_group("nccl", init_method="env://")',
    ],
)
def test_whatever_backend_is_named_the_rank_is_of_the_job_and_waits_for_nobody(capsys, tmp_path, begin):
    """Groups of other backends, barriers and broadcasts among them; afterwards all is as it was."""
    more = (
        "assert (dist.get_world_size(), dist.get_rank()) == (64, 5); dist.barrier(); "
        'dist.broadcast(torch.ones(3), 0); half = dist.new_group(range(32), backend="gloo")'
    )
    parts = {
        "begin": f"{begin}; {more}",
        "wrap": "",
        "around": ' + functional.wait_tensor(functional.all_reduce(x, "sum", half))',
    }
    before = dict(os.environ)
    left = _mesh_of_an_earlier_job()
    status, report = estimate(capsys, tmp_path, parts, "--target", "2xtrn1.32xlarge", "--rank", "5")
    assert status == 0, report
    job = report["targets"][0]["job"]
    assert job["rank"] == 5
    assert job["batches"] == 0
    assert job["per_s"] == 0
    assert set(job["communication"]["purposes"]) == {"tensor"}
    assert dict(os.environ) == before
    assert not dist.is_initialized()
    assert left.shape == (8,)


def _mesh_of_an_earlier_job():
    """A mesh whose job has ended: its group's name is that of the next job's first group."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("dp",))
    dist.destroy_process_group()
    return mesh


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--target", "4xtrn2.48xlarge", "--rank", "256"), "TRN191"),
        (("--target", "4xtrn2.48xlarge,trn1.2xlarge"), "TRN191"),
        (("--target", "4xtrn2.48xlarge", "--ranks", "3"), "TRN180"),
        (("--target", "4xnothing"), "TRN101"),
    ],
)
def test_jobs_that_cannot_be_are_refused_in_one_line(capsys, tmp_path, arguments, code):
    status, said = estimate(capsys, tmp_path, REPLICA, *arguments)
    assert status == 2
    assert code in said


def test_the_text_says_what_is_communication_and_warns(capsys, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(HEAD.format(**REPLICA))
    job = ["--target", "trn1.32xlarge", "--ranks", "32", "--comm-threshold", "0.1"]
    assert command.main(["estimate", "--stack", "ours", "--no-cache", *job, str(script)]) == 0
    out = capsys.readouterr().out
    assert "trn1.32xlarge, 32 ranks, as rank 0 does it" in out
    assert "all_reduce" in out
    assert "gradients: " in out
    assert "NeuronLink: " in out
    assert "warning: the exchange of gradients takes " in out
    assert "more than 10%" in out


def test_what_the_script_exchanges_by_itself_is_part_of_the_step(capsys, tmp_path):
    """Before the first step and on the host it is not; what has not been asked for is not there."""
    reports = []
    for around in ("", "; dist.all_reduce(loss); dist.broadcast(torch.ones(9), 0)"):
        script = tmp_path / "train.py"
        script.write_text(HEAD.format(**REPLICA).replace("    step(x, y)", f"    loss = step(x, y){around}"))
        arguments = ["--json", "--target", "2xtrn1.32xlarge", "--fault", "efa:node1.rail3=0.1"]
        assert (
            command.main(["estimate", "--stack", "ours", "--cache", str(tmp_path / "cache"), *arguments, str(script)])
            == 0
        )
        reports.append(json.loads(capsys.readouterr().out)["targets"][0])
    before, after = reports
    cost = world_of("2xtrn1.32xlarge", 64).cost(Collective("all_reduce", (tuple(range(64)),)), 4).seconds
    assert before["job"]["communication"]["purposes"].keys() == {"gradient"}
    other = after["job"]["communication"]["purposes"]["other"]
    assert (other["count"], other["bytes"]) == (1, 4)
    assert other["time_s"] == other["exposed_s"] == pytest.approx(cost)
    assert after["step_s"] == pytest.approx(before["step_s"] + cost)
    assert after["parts"]["exchanged"] == pytest.approx(cost)
    assert after["job"]["sick"]["healthy_s"] == pytest.approx(after["step_s"])
    assert after["job"]["sick"]["sick_s"] > before["job"]["sick"]["sick_s"]


EAGER = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("neuron")
model = DistributedDataParallel(nn.Linear(64, 64).to("neuron"))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    x = torch.randn(8, 64).to("neuron")
    (model(x) ** 2).mean().backward()
    optimizer.step()
"""


def test_hooks_of_replicas_that_are_not_captured_are_counted(capsys, tmp_path):
    """The reducer of PyTorch's own asks for them, in C++: a part of the step, which is recorded."""
    script = tmp_path / "train.py"
    script.write_text(EAGER)
    command.main(["estimate", "--stack", "ours", "--no-cache", "--target", "2xtrn1.32xlarge", str(script)])
    out = capsys.readouterr().out
    assert "operators recorded" in out
    assert "exposed (1, 16.2 KiB)" in out
    assert "as 1 all_reduce" in out


@pytest.mark.parametrize("size", [0, 1, 5, 8, 13])
@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("dim", [0, 1])
def test_chunks_on_demand_are_fsdps(size, count, dim):
    shape = (size, 3) if dim == 0 else (3, size)
    tensor = torch.arange(3 * size).reshape(shape)
    wanted, chunks = _fsdp_common._chunk_with_empty(tensor, count, dim), Chunks(tensor, count, dim)
    for number, chunk in enumerate(wanted):
        assert chunks[number].shape == chunk.shape
        assert torch.equal(chunks[number], chunk)
