# SPDX-License-Identifier: Apache-2.0
"""The backend `neuron` between processes: results, training, and what it says of mistakes.

Starting a process takes seconds, so each launch makes many checks; what failed is in the output.
"""

import json
import re

import pytest

from tests.distributed.ranks import launch

pytestmark = pytest.mark.torch
SIZES = [pytest.param(2, marks=pytest.mark.slow), 4]  # pairs of the four are groups of two


def passed(ended):
    for rank, each in enumerate(ended):
        assert each.status == 0, f"rank {rank}:\n{each.output}"
        assert "FAILED" not in each.output
    return ended


@pytest.mark.parametrize("ranks", SIZES)
def test_collectives(tmp_path, ranks):
    for each in passed(launch("collectives_script.py", tmp_path, ranks)):
        assert each.output.count("passed") == 17


@pytest.mark.parametrize("ranks", SIZES)
def test_training_is_that_of_one_process_with_the_whole_batch(tmp_path, ranks):
    for each in passed(launch("training_script.py", tmp_path, ranks)):
        assert each.output.count("passed") == 14


SAID = {  # what both ranks say of each mistake
    "order": ("TRN270", "operation", "rank 0: all_reduce", "rank 1: collective_broadcast"),
    "size": ("TRN270", "size", "4 float32", "5 float32"),
    "dtype": ("TRN270", "format", "float32", "bfloat16"),
    "reduction": ("TRN270", "reduction", "all_reduce(sum)", "all_reduce(max)"),
    "root": ("TRN270", "root", "with root 0", "with root 1"),
    "transfer_size": ("TRN270", "send of 4", "recv of 7"),
    "splits": ("TRN270", "rank 0 gives 2 elements to rank 1, who takes 1"),
    "two_sends": ("TRN272", "deadlock", "ranks 0, 1: waits in send"),
    "crossed_groups": ("TRN272", "deadlock", "the default group", "group "),
    "too_few_tensors": ("TRN277", "2 tensors"),
    "no_such_reduction": ("TRN275", "band"),
}


def test_mistakes_are_told_with_ranks_and_lines_and_nobody_hangs(tmp_path):
    for rank, each in enumerate(passed(launch("mistakes_script.py", tmp_path))):
        said = dict(re.findall(r"^== (\w+): (.*?)(?=^== |\Z)", each.output, re.MULTILINE | re.DOTALL))
        assert said["late_is_no_mistake"].startswith("nothing")
        for name, words in SAID.items():
            for word in words:
                assert word in said[name], f"{name}:\n{said[name]}"
            if words[0] in ("TRN270", "TRN272"):
                assert "mistakes_script.py:" in said[name]
        late = said["a_group_with_little_time"]
        assert re.search(r"TRN27[13]", late)
        if rank == 0:
            assert "barrier of group" in late
            assert "timeout of 0.5 s" in late
            assert float(re.match(r"after ([\d.]+) s", late)[1]) < 2
            assert "TRN271: rank 1 closed the group (destroy_process_group)" in said["leaves"]


@pytest.mark.parametrize(
    ("how", "ending", "said", "status"),
    [
        ("raises", 1, "rank 1 failed, and rank 0 waits for it|ValueError: a bad batch at .*end_script.py:17", 1),
        ("killed", 1, "rank 1 is gone, and rank 0 waits for it", -9),
        ("killed", 0, "rank 0 is gone, and rank 1 waits for it", -9),
        ("leaves", 1, "rank 1 came to the end of its script", 0),
    ],
)
def test_the_end_of_a_rank_is_told_to_those_who_wait(tmp_path, how, ending, said, status):
    both = launch("end_script.py", tmp_path, 2, how, str(ending), TORCHELASTIC_RUN_ID="as by torchrun")
    waiting = both[1 - ending]
    assert both[ending].status == status, both[ending].output
    assert waiting.status == 1, waiting.output
    for text in ("TRN271", "end_script.py:21", *said.split("|")):
        assert re.search(text, waiting.output), waiting.output
    assert "Traceback" not in waiting.output
    summary = json.loads((tmp_path / "runs" / "end_script-1" / "summary.json").read_text())
    statuses = [each["status"] for each in summary["ranks"]]
    assert statuses[1 - ending] == "failed"
    assert statuses[ending] == {"raises": "failed", "killed": "killed", "leaves": "complete"}[how]
    assert summary["status"] == "failed"
    assert "TRN271" in summary["ranks"][1 - ending]["failure"]


def test_horovods_calls(tmp_path):
    for each in passed(launch("horovod_script.py", tmp_path)):
        assert each.output.count("passed") == 11


def test_torch_xlas_calls(tmp_path):
    for each in passed(launch("torch_xla_script.py", tmp_path)):
        assert each.output.count("passed") == 7


def test_hooks_callbacks_normalization_and_sharding_of_pytorchs(tmp_path):
    for each in passed(launch("hooks_script.py", tmp_path)):
        assert each.output.count("passed") == 14


def test_ranks_that_a_script_starts_itself_call_their_device_by_number(tmp_path):
    (only,) = passed(launch("spawned_script.py", tmp_path, 1, str(tmp_path / "spawned")))
    assert only.output.count("is as one process") == 2
