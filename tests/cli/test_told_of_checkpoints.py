# SPDX-License-Identifier: Apache-2.0
"""What `trnlab run` says at its end of the checkpoints that were asked for."""

from __future__ import annotations

import pytest

from trnlab.chips import target
from trnlab.cli.run import _tell_of_checkpoints
from trnlab.fleet.reliability.checkpoint_cost import sentence
from trnlab.runtime.checkpoint_plan import CheckpointUse
from trnlab.runtime.session import Session
from trnlab.runtime.settings import CHECKPOINT, KEEP


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    for name in (CHECKPOINT, KEEP, "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return Session(target("trn1.2xlarge"), "fp32")


def test_nothing_where_none_was_asked_for(session, capsys):
    _tell_of_checkpoints(session)
    assert capsys.readouterr().err == ""


def test_that_nobody_wrote_one(session, monkeypatch, capsys):
    monkeypatch.setenv(CHECKPOINT, "kept")
    monkeypatch.setattr(CheckpointUse, "by", None)
    _tell_of_checkpoints(session)
    assert capsys.readouterr().err.startswith("trnlab: TRN533: no checkpoint was written: ")


@pytest.mark.parametrize(("rank", "said"), [("0", True), ("1", False)])
def test_what_it_would_cost_by_one_rank_for_all(session, monkeypatch, capsys, rank, said):
    for name, value in ((CHECKPOINT, "s3://team/run7"), (KEEP, "5"), ("RANK", rank), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(CheckpointUse, "by", "the script")
    monkeypatch.setattr(CheckpointUse, "latest_bytes", 10**9)
    _tell_of_checkpoints(session)
    meant = sentence("s3://team/run7", 2 * 10**9, session.target.chips, session.target.chips, 2, 5)
    assert capsys.readouterr().err == (f"trnlab: {meant}\n" if said else "")
