# SPDX-License-Identifier: Apache-2.0
"""`trnlab estimate` of pipelines: all ranks are followed, each distinct stage is compiled once."""

from __future__ import annotations

import json

import pytest

from trnlab.cli import main as command
from trnlab.collectives import Collective
from trnlab.estimate.schedule import StagePass, played
from trnlab.fabric.world import world_of

pytestmark = pytest.mark.torch

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import {schedule} as Schedule
dist.init_process_group("neuron")
rank, size, each = dist.get_rank(), dist.get_world_size(), {each}
stages = [
    PipelineStage(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to("neuron"), number, size * each,
                  torch.device("neuron"))
    for number in range(rank, size * each, size)
]
schedule = Schedule(stages if each > 1 else stages[0], 4, nn.functional.mse_loss)
for _ in range(2):
    x, y = torch.randn(32, 64).to("neuron"), torch.randn(32, 64).to("neuron")
    if rank == 0:
        schedule.step(x, **({{"target": y}} if size == 1 else {{}}))
    else:
        schedule.step(**({{"target": y, "losses": []}} if rank == size - 1 else {{}}))
"""


def estimate(capsys, tmp_path, schedule, each=1, rank=0, stack="ours"):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(schedule=schedule, each=each))
    arguments = ["--cache", str(tmp_path / "cache"), "--target", "trn1.32xlarge", "--ranks", "4", "--rank", str(rank)]
    status = command.main(["estimate", "--stack", stack, "--json", *arguments, str(script)])
    out = capsys.readouterr()
    return status, json.loads(out.out) if status == 0 else out.out + out.err


def seconds_of(pipeline):
    stages = pipeline["stages"]
    return {
        (backward, s["stage"]): s[f"{'backward' if backward else 'forward'}_s"]
        for s in stages
        for backward in (False, True)
    }


def test_one_forward_one_backward(capsys, tmp_path):
    status, report = estimate(capsys, tmp_path, "Schedule1F1B", rank=1)
    assert status == 0, report
    target = report["targets"][0]
    pipeline = target["job"]["pipeline"]
    assert (pipeline["schedule"], pipeline["microbatches"], target["job"]["rank"]) == ("1F1B", 4, 1)
    assert [s["rank"] for s in pipeline["stages"]] == [0, 1, 2, 3]
    assert [r["in_flight"] for r in pipeline["ranks"]] == [4, 3, 2, 1]
    seconds = seconds_of(pipeline)
    assert seconds[False, 1] == seconds[False, 2], "equal stages are one program"
    assert seconds[True, 1] == seconds[True, 2]
    assert len(list((tmp_path / "cache" / "v1").glob("*.trnx"))) < 2 * 4
    send = world_of("trn1.32xlarge", 4).cost(Collective("collective_permute", pairs=((0, 1),)), 8 * 64 * 4).seconds
    assert (pipeline["stages"][0]["sends"], pipeline["stages"][0]["send_s"]) == (8 * 64 * 4, pytest.approx(send))
    last = (
        seconds[False, 3] + seconds[True, 3]
    )  # the slowest, which has the loss, after the first microbatch's way to it
    way = sum(seconds[False, s] + seconds[True, s] + 2 * pipeline["stages"][s]["send_s"] for s in range(3))
    assert target["step_s"] == pytest.approx(4 * last + way, rel=0.02)
    assert sum(target["parts"].values()) == pytest.approx(target["step_s"])
    assert (report["per_step"], target["job"]["batches"]) == (32, 1)
    assert any("eager stages" in note for note in report["notes"])


def test_a_host_that_traces_each_microbatch_is_waited_for(capsys, tmp_path):
    found = {}
    for stack in ("ours", "vendor"):
        status, report = estimate(capsys, tmp_path, "Schedule1F1B", stack=stack)
        assert status == 0, report
        (found[stack],) = report["targets"]
    ours, vendor = found["ours"], found["vendor"]
    assert "host" not in ours["parts"]
    host_s = vendor["parts"]["host"]
    assert host_s > ours["step_s"], "the passes of small stages take less than tracing them"
    assert vendor["step_s"] == pytest.approx(sum(vendor["parts"].values()))
    assert vendor["step_s"] == pytest.approx(vendor["job"]["step_s"])
    assert vendor["job"]["usd_per_step"] == pytest.approx(vendor["usd_per_hour"] * vendor["step_s"] / 3600)


@pytest.mark.slow
def test_all_forward_first_keeps_more(capsys, tmp_path):
    status, report = estimate(capsys, tmp_path, "ScheduleGPipe")
    assert status == 0, report
    pipeline = report["targets"][0]["job"]["pipeline"]
    assert [r["in_flight"] for r in pipeline["ranks"]] == [4, 4, 4, 4]
    order = [[StagePass(b, rank, i) for b in (False, True) for i in range(4)] for rank in range(4)]
    run = played(order, seconds_of(pipeline), [s["send_s"] for s in pipeline["stages"][:-1]])
    assert report["targets"][0]["step_s"] == pytest.approx(run.total)
    assert pipeline["bubble"] == pytest.approx(run.bubble)


@pytest.mark.slow
def test_several_stages_a_rank(capsys, tmp_path):
    """The second stage of a rank needs shapes that a rank says which is followed later."""
    status, report = estimate(capsys, tmp_path, "ScheduleInterleaved1F1B", each=2)
    assert status == 0, report
    pipeline = report["targets"][0]["job"]["pipeline"]
    assert [s["rank"] for s in pipeline["stages"]] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert pipeline["ranks"][0]["in_flight"] > pipeline["ranks"][3]["in_flight"]
    assert 0 < pipeline["bubble"] < 1


def test_schedules_that_divide_the_way_back_are_refused(capsys, tmp_path):
    status, said = estimate(capsys, tmp_path, "ScheduleInterleavedZeroBubble", each=2)
    assert status != 0
    assert "TRN198" in said
    assert "Traceback" not in said


def test_ranks_that_wait_for_each_other_come_to_no_end():
    first = [StagePass(False, 0, 0), StagePass(True, 0, 0)]
    assert (
        played(
            [first, [StagePass(True, 1, 0), StagePass(False, 1, 0)]],
            {(b, s): 1.0 for b in (0, 1) for s in (0, 1)},
            [0.5],
        )
        is None
    )
    run = played(
        [first, [StagePass(False, 1, 0), StagePass(True, 1, 0)]],
        {(b, s): 1.0 for b in (0, 1) for s in (0, 1)},
        [0.5],
        [7, 9],
    )
    assert (run.total, run.busy, run.held, run.activation_bytes) == (5.0, (2.0, 2.0), (1, 1), (7, 9))
