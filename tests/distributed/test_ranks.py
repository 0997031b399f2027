# SPDX-License-Identifier: Apache-2.0
"""One folder for the runs of several ranks, and what each rank is told when it is started."""

import json
import os
import sys

import pytest

from trnlab.errors import CollectiveError, UsageError
from trnlab.profile import data
from trnlab.runtime import session
from trnlab.runtime.analysis.traffic import Fabric
from trnlab.runtime.jobs import forks, ranks
from trnlab.runtime.script import Script, execute
from trnlab.sim.functional import machine


def left(folder, **fields):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / data.FILE).write_text(json.dumps(fields))


def test_the_summary_of_rank_0_says_how_all_ended(tmp_path):
    left(tmp_path, status="complete", complete=True, steps=3)
    left(ranks.folder_of(tmp_path, 1), status="failed", failure="ValueError: bad batch", steps=1)
    left(ranks.folder_of(tmp_path, 2), status="running", steps=2)
    ranks.merge(tmp_path, 4, ended=range(4))
    summary = json.loads((tmp_path / data.FILE).read_text())
    assert (summary["status"], summary["complete"]) == ("failed", False)
    assert [each["status"] for each in summary["ranks"]] == ["complete", "failed", "killed", "killed"]
    assert summary["ranks"][1]["failure"] == "ValueError: bad batch"


def test_ranks_that_are_all_well_leave_a_complete_run(tmp_path):
    left(tmp_path, status="complete", complete=True)
    left(ranks.folder_of(tmp_path, 1), status="complete")
    ranks.merge(tmp_path, 2, ended={1})
    assert json.loads((tmp_path / data.FILE).read_text())["complete"]


def test_each_rank_has_its_share_of_the_processors(monkeypatch):
    monkeypatch.setattr(ranks.os, "cpu_count", lambda: 8)
    told = ranks.environment(4, 3, 29500, {"HOME": "/"})
    assert told["OMP_NUM_THREADS"] == "2"
    assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"], told["HOME"]) == ("3", "3", "4", "/")
    assert ranks.environment(4, 0, 29500, {"OMP_NUM_THREADS": "5"})["OMP_NUM_THREADS"] == "5"
    monkeypatch.setattr(machine, "cpu_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert machine.RunOptions().threads == 1


def test_the_command_of_a_rank_is_the_users_without_what_concerns_all():
    given = ["--target", "trn1", "--ranks", "4", "--out=here", "train.py", "--lr", "1"]
    assert ranks.without(given, "--ranks", "--out") == ["--target", "trn1", "train.py", "--lr", "1"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("exits", "status"), [((0, 0), 0), ((0, 3), 3), ((7, 0), 7)])
def test_the_status_is_that_of_the_rank_that_failed(tmp_path, monkeypatch, exits, status):
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys; sys.exit({list(exits)}[int(os.environ['RANK'])])")
    monkeypatch.setattr(ranks, "COMMAND", (sys.executable, str(script)))
    monkeypatch.setenv("TRNLAB_RANKS", "spawn")
    assert ranks.start(2, [], tmp_path / "run") == status


TELLS = """
import os, sys, threading
print(sys.argv[3:], __name__, sys.path[0], os.environ["OMP_NUM_THREADS"], os.environ["WORLD_SIZE"])
print(os.environ["HERE"], "MASTER_PORT" in os.environ)
print(threading.active_count(), sys.stdin is None or sys.stdin.closed, sys.stdout.isatty(), sys.stdout.line_buffering)
sys.stderr.write(f"rank {os.environ['RANK']} of {os.environ['LOCAL_RANK']} in {os.getcwd()}, and its end\\n")
if os.environ["RANK"] == "1":
    raise ValueError("of one")
if os.environ["RANK"] == "2":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not forks.possible(), reason="no copies of processes here")
def test_ranks_that_are_copies_are_as_those_that_start_by_themselves(tmp_path, monkeypatch, capsys):
    script = tmp_path / "script.py"
    script.write_text(TELLS)
    monkeypatch.setattr(ranks, "COMMAND", (sys.executable, str(script)))
    said = []
    for way in ("fork", "spawn"):
        ended = ranks.run(3, ["a", "b c"], tmp_path / "run", {**os.environ, "TRNLAB_RANKS": way, "HERE": "there"})
        assert ended.ranks == (0, 1, -9)
        assert ended.status in (1, 137)  # whichever was first
        said.append([sorted(stream.splitlines()) for stream in capsys.readouterr()])
    assert said[0] == said[1]
    assert len(said[0][0]) == 9
    assert "[rank 1] ValueError: of one" in said[0][1]


def test_a_way_to_start_ranks_that_there_is_not(monkeypatch):
    with pytest.raises(UsageError, match="TRN189"):
        ranks.check_choice({"TRNLAB_RANKS": "thread"})
    monkeypatch.setattr(forks, "possible", lambda: False)
    ranks.check_choice({})
    with pytest.raises(UsageError, match="copies of one process"):
        ranks.check_choice({"TRNLAB_RANKS": "fork"})


@pytest.mark.parametrize(
    ("target", "size", "rank", "place"),
    [("trn1.32xlarge", 4, 3, (0, 1, 1)), ("2xtrn1.32xlarge", 8, 5, (1, 0, 1)), ("trn2.48xlarge", 64, 5, (0, 1, 1))],
)
def test_each_rank_has_its_core(target, size, rank, place):
    made = Fabric(session.from_environment({"TRNLAB_TARGET": target}), size, rank)
    assert tuple(made.place.values()) == place


def test_worlds_that_the_runtime_does_not_start_are_refused():
    here = session.from_environment({"TRNLAB_TARGET": "trn1.32xlarge"})
    with pytest.raises(CollectiveError, match="3 ranks on one trn1") as error:
        Fabric(here, 3, 0)
    assert error.value.code == "TRN274"
    with pytest.raises(UsageError) as error:
        Fabric(session.from_environment({"TRNLAB_TARGET": "2xtrn1.32xlarge"}), 8, 0).check_group(((0, 1, 4),))
    assert error.value.code == "TRN183"
    with pytest.raises(UsageError, match="at least one rank"):
        ranks.check_count(0)


@pytest.mark.torch
def test_a_script_of_ranks_that_is_run_as_one_process_hears_how_to_start_them(tmp_path, monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "train.py"
    file.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    assert execute(Script(file)) == 1
    said = capsys.readouterr().err
    assert "environment variable RANK expected" in said  # the script's own traceback stays
    assert "trnlab run --ranks N" in said
