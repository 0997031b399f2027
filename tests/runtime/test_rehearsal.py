# SPDX-License-Identifier: Apache-2.0
"""Failures that are rehearsed strike whom they should, when they should, and once; what they cost is added up."""

from __future__ import annotations

import errno
import json
import signal
from types import SimpleNamespace

import pytest

from trnlab import chips, files
from trnlab.errors import CollectiveError, RunError, UsageError
from trnlab.profile import data
from trnlab.runtime import fault_injection
from trnlab.runtime.analysis import lanes
from trnlab.runtime.jobs import elastic, ranks
from trnlab.runtime.session import Session, from_environment

RANK_1_OF_4 = {"RANK": "1", "WORLD_SIZE": "4"}


@pytest.fixture(autouse=True)
def _whole_disk():
    yield
    files.Disk.full = False


def faults(*texts):
    return fault_injection.split(texts)[0]


def of_rank(*texts, instances=2, **environment):
    return fault_injection.FaultInjector(faults(*texts), instances, {**RANK_1_OF_4, **environment})


@pytest.mark.parametrize(
    "text",
    [
        "rank0:step0=kill",
        "rank0:step3=burn",
        "rank:step3=kill",
        "node0:kill",
        "rank1:step2=kill:2",
        "rank1:step2=slow:0.5",
        "rank1:step2=slow:1.2.3",
    ],
)
def test_what_is_no_failure_is_refused(text):
    with pytest.raises(UsageError) as error:
        fault_injection.parse(text)
    assert error.value.code == "TRN554"


def test_links_and_ranks_are_told_apart():
    mine, links = fault_injection.split(["efa:node1.rail3=half", "node1:step5=slow:3"])
    assert links == ("efa:node1.rail3=half",)
    assert (mine[0].where, mine[0].number, mine[0].step, mine[0].factor) == ("node", 1, 5, 3.0)
    session = from_environment({"TRNLAB_TARGET": "trn1.32xlarge", "TRNLAB_FAULT": "rank4:step1=kill"})
    with pytest.raises(UsageError, match="no rank 4"):
        session.check_faults(4)
    with pytest.raises(UsageError, match="no node 1"):
        fault_injection.check(mine, 4, 1)


def test_only_the_rank_and_the_instance_that_are_named_are_struck():
    assert of_rank("rank1:step1=ecc", instances=2).node == 0
    of_rank("rank0:step1=ecc", "node1:step1=ecc").begin(1, 0)
    for text in ("rank1:step1=ecc", "node0:step1=ecc"):
        with pytest.raises(RunError, match="rank 1, instance 0, in step 1") as error:
            of_rank(text).begin(1, 0)
        assert error.value.code == "TRN555"


def test_a_fault_strikes_at_its_step_and_once(tmp_path):
    told = {fault_injection.STRUCK: str(tmp_path)}
    first = of_rank("rank1:step3=ecc", **told)
    first.begin(1, 0)
    first.begin(2, 0)
    with pytest.raises(RunError):
        first.begin(3, 0)
    of_rank("rank1:step3=ecc", **told).begin(3, 2)  # started again
    assert [note["step"] for note in fault_injection.triggered(tmp_path)] == [3]
    of_rank("rank1:step3=ecc").begin(5, 4)  # done before this process began
    of_rank("rank1:step3=ecc", TORCHELASTIC_RESTART_COUNT="1").begin(3, 2)


def test_a_rank_is_killed(monkeypatch):
    sent = []
    monkeypatch.setattr(fault_injection.os, "kill", lambda pid, number: sent.append(number))
    of_rank("rank1:step2=kill").begin(2, 0)
    assert sent == [signal.SIGKILL]


def test_a_device_that_hangs_is_given_up_as_the_runtime_does(monkeypatch):
    slept = []
    monkeypatch.setattr(fault_injection.time, "sleep", slept.append)
    for told, seconds in (({}, 30), ({fault_injection.EXEC_TIMEOUT: "4"}, 4)):
        with pytest.raises(RunError, match="step 2 did not end on rank 1") as error:
            of_rank("rank1:step2=hang", **told).begin(2, 0)
        assert error.value.code == "TRN556"
        assert slept.pop() == seconds


def test_a_full_disk_is_found_by_every_writer(tmp_path):
    of_rank("rank1:step2=disk").begin(2, 0)
    with pytest.raises(OSError, match="No space") as error:
        files.write_atomic(tmp_path / "file", b"content")
    assert error.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_a_slow_device_takes_longer_in_the_step_of_all():
    slow = of_rank("rank1:step2=slow:3")
    slow.begin(2, 0)
    assert slow.slow == 3
    work = {"work": 10, "label": "step", "busy": [[0, 4]], "sent": [[2, 3, "gradient", "all_reduce"]], "all": False}
    meet = {"meet": [0, 1], "ps": 5, "purpose": "other", "kind": "all_reduce", "pair": False}
    well, sick = [work, meet], lanes.slowed([work, meet], slow.slow)
    assert sick[0]["busy"] == [[0, 12]]
    assert sick[1] == meet
    assert lanes.together([well, sick])["total_ps"] == 35


@pytest.mark.parametrize("text", ["2:", "a", "1:2:3", "-1", ""])
def test_numbers_of_ranks_that_cannot_be_are_refused(text):
    with pytest.raises(UsageError):
        elastic.parse(text)


def test_sizes():
    assert elastic.parse("4") == (4, 4)
    assert elastic.parse("2:4") == (2, 4)
    with pytest.raises(UsageError):
        elastic.ElasticSize(3, 2)


def left(root, rank, **fields):
    folder = ranks.folder_of(root, rank)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / data.FILE).write_text(json.dumps(fields))


def test_what_was_lost_is_added_up(tmp_path, monkeypatch):
    monkeypatch.setattr(elastic, "_kept", lambda: 6)
    for rank in (0, 2):
        left(tmp_path, rank, resumed=3, steps=7, tokens_per_step=100, step_time_s=2.0, failure="TRN271: gone")
    left(tmp_path, 1, resumed=3, steps=5)
    left(tmp_path, 3, resumed=3, steps=7, tokens_per_step=100, step_time_s=3.6, failure="TRN555: ECC")
    session = Session(chips.target("trn1.32xlarge"), instances=2)
    found = elastic._judged(ranks.JobExit(137, (2, -9, 2, 2)), tmp_path, session)
    assert (found.first, found.last, found.dead) == (4, 10, [1, 3])
    assert (found.lost_steps, found.lost_tokens) == (4, 4 * 400)
    assert found.lost_s == pytest.approx(14.4)
    assert found.lost_usd == pytest.approx(14.4 * 21.5 * 2 / 3600)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Runs a job whose attempts end as told; returns how many ranks each had."""

    def run(size, *ends):
        sizes, left_over = [], list(ends)

        def attempt(count, arguments, folder, given, imports):
            sizes.append(count)
            folder.mkdir(parents=True, exist_ok=True)
            return left_over.pop(0)(count)

        monkeypatch.setattr(elastic.ranks, "run", attempt)
        session = Session(chips.target("trn1.32xlarge"))
        status = elastic.start(size, [], tmp_path / "job", session)
        assert session.counters.fabric is None
        return status, sizes

    return run


def well(count):
    return ranks.JobExit(0, (0,) * count)


def killed(count):
    return ranks.JobExit(137, (-9, *(2,) * (count - 1)))


def test_a_job_goes_on_with_spares_and_then_with_fewer(job, tmp_path):
    assert job(elastic.ElasticSize(2, 4, spares=1, restarts=3), killed, killed, well) == (
        0,
        [4, 4, 2],
    )  # 3 are no world
    record = json.loads((tmp_path / "job" / elastic.FILE).read_text())
    assert [(each["ranks"], each["dead"]) for each in record["attempts"]] == [(4, [0]), (4, [0]), (2, [])]


def test_a_job_ends_when_no_restart_is_left_or_somebody_stops_it(job):
    assert job(elastic.ElasticSize(2, 2, restarts=0), killed) == (137, [2])
    assert job(elastic.ElasticSize(1, 2, restarts=3), lambda count: ranks.JobExit(130, (130,) * count)) == (130, [2])


def test_a_job_without_enough_ranks_is_an_error(job):
    with pytest.raises(CollectiveError, match="3 ranks are left") as error:
        job(elastic.ElasticSize(4, 4, restarts=1), killed)
    assert error.value.code == "TRN558"


def test_without_a_place_for_checkpoints_everything_is_lost(monkeypatch):
    monkeypatch.setattr(elastic, "plan", lambda: None)
    assert elastic._kept() == 0
    monkeypatch.setattr(elastic, "plan", lambda: SimpleNamespace(place="/nowhere/at/all"))
    assert elastic._kept() == 0
