# SPDX-License-Identifier: Apache-2.0
"""Failures that are rehearsed: `trnlab run --fault rank2:step37=kill`, beside faults of links (`fabric.faults`).

    rank2:step37=kill      SIGKILL, before the first program of step 37
    node1:step50=ecc       an uncorrectable ECC error on the devices of all ranks of instance 1
    rank0:step5=hang       a program that never ends: the runtime gives up after NEURON_RT_EXEC_TIMEOUT seconds (30)
    rank1:step8=disk       from then on this process finds the disk full
    rank3:step4=slow:2     from then on the device takes twice its time, in the step of all ranks

Steps count from one over all restarts of a job. A fault that struck does not strike again after a restart: what has
struck is noted in the folder that TRNLAB_FAULTS_STRUCK names; under torchrun, without one, only first attempts are
struck. Source of names and numbers of the runtime's errors: reference of NRT_STATUS in aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trnlab import files
from trnlab.errors import RunError, UsageError
from trnlab.runtime.notices import say

STRUCK = "TRNLAB_FAULTS_STRUCK"
ATTEMPT = "TRNLAB_RESTART"  # of a job that starts again: how often it has
EXEC_TIMEOUT, USUAL_TIMEOUT_S = "NEURON_RT_EXEC_TIMEOUT", 30.0
KINDS = ("kill", "hang", "ecc", "disk", "slow")
_FORM = re.compile(r"(rank|node)(\d+):step(\d+)=([a-z]+)(?::(\d+(?:\.\d+)?))?")
_LIKE = re.compile(r"(rank|node)\d*:")


@dataclass(frozen=True)
class Fault:
    """What happens to whom at which step."""

    text: str
    where: str  # "rank" or "node"
    number: int
    step: int
    kind: str
    factor: float = 2.0  # of the time, where it is slow

    def strikes(self, rank: int, node: int) -> bool:
        """Whether this rank, on this instance, is struck."""
        return self.number == (rank if self.where == "rank" else node)


def parse(text: str) -> Fault | None:
    """One fault, or None for what can only be one of a link. Raises UsageError (TRN554)."""
    found = _FORM.fullmatch(text)
    if found is None:
        if _LIKE.match(text):
            raise _wrong(text)
        return None
    factor = float(found[5] or 2)
    if found[4] not in KINDS or int(found[3]) < 1 or (found[5] and (found[4] != "slow" or factor < 1)):
        raise _wrong(text)
    return Fault(text, found[1], int(found[2]), int(found[3]), found[4], factor)


def _wrong(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is no fault that can be rehearsed",
        code="TRN554",
        got=text,
        limit=f"rankN:stepN=KIND or nodeN:stepN=KIND, steps from 1, of {', '.join(KINDS)}; slow:F with F from 1",
        remedy="such as --fault rank2:step37=kill",
    )


def split(told: Sequence[str]) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    """Faults of ranks and nodes, and those of links. Raises UsageError (TRN554)."""
    parsed = [(text, parse(text)) for text in told]
    return tuple(f for _, f in parsed if f is not None), tuple(text for text, f in parsed if f is None)


def check(faults: Sequence[Fault], ranks: int, instances: int) -> None:
    """Raise UsageError (TRN554) for faults of ranks or instances that a job does not have, nor had at its start."""
    for fault in faults if not int(os.environ.get(ATTEMPT) or 0) else ():
        have = ranks if fault.where == "rank" else instances
        if fault.number >= have:
            raise UsageError(
                f"the job has no {fault.where} {fault.number}",
                code="TRN554",
                got=fault.text,
                limit=f"{fault.where}0 to {fault.where}{have - 1}",
                remedy="choose one of these",
            )


class FaultInjector:
    """The faults of this process that have not struck yet. slow: how many times as long its device takes."""

    def __init__(self, faults: Sequence[Fault], instances: int, environment: Mapping[str, str] = os.environ) -> None:
        self.rank = int(environment.get("RANK") or 0)
        ranks = int(environment.get("WORLD_SIZE") or 1)
        self.node = self.rank * instances // ranks
        self.folder = Path(environment[STRUCK]) if environment.get(STRUCK) else None
        self._timeout_s = _seconds(environment.get(EXEC_TIMEOUT))
        again = self.folder is None and int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0
        mine = [f for f in faults if f.strikes(self.rank, self.node) and not again and not self._noted(f)]
        self._waiting = sorted(mine, key=lambda fault: fault.step)
        self.slow = 1.0
        self.ecc = 0

    def begin(self, step: int, resumed: int) -> None:
        """A program of this step is about to run. Raises RunError: TRN555 for an ECC error, TRN556 for a program that
        does not end. A step that was done before this process began strikes nobody."""
        while self._waiting and self._waiting[0].step <= step:
            fault = self._waiting.pop(0)
            if fault.step > resumed:
                self._strike(fault, step)

    def _strike(self, fault: Fault, step: int) -> None:
        self._note(fault, step)
        say(f"rehearsed: {fault.text} strikes rank {self.rank} (instance {self.node}) in step {step}")
        if fault.kind == "kill":
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "hang":
            time.sleep(self._timeout_s)
            raise RunError(
                f"a program of step {step} did not end on rank {self.rank}: NRT_TIMEOUT (5)",
                code="TRN556",
                limit=f"{self._timeout_s:g} s, {EXEC_TIMEOUT}",
                got=fault.text,
                remedy="start again from the newest checkpoint, on another instance where it happens again",
            )
        elif fault.kind == "ecc":
            self.ecc += 1
            raise RunError(
                f"an uncorrectable error in the HBM of rank {self.rank}, instance {self.node}, in step {step}: "
                "NRT_EXEC_HW_ERR_HBM_UE (1201)",
                code="TRN555",
                got=fault.text,
                limit="no uncorrectable errors",
                remedy="replace the instance, and start again from the newest checkpoint",
            )
        elif fault.kind == "disk":
            files.Disk.full = True
        else:
            self.slow *= fault.factor

    def _noted(self, fault: Fault) -> bool:
        return self.folder is not None and self._file(fault).exists()

    def _note(self, fault: Fault, step: int) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            attempt = int(os.environ.get(ATTEMPT) or 0)
            record = {"attempt": attempt, "rank": self.rank, "instance": self.node, "step": step, "fault": fault.text}
            files.write_atomic(self._file(fault), json.dumps(record).encode())

    def _file(self, fault: Fault) -> Path:
        assert self.folder is not None
        return self.folder / f"{re.sub('[^a-z0-9.]', '-', fault.text)}.{self.rank}.json"


def triggered(folder: Path) -> list[dict[str, object]]:
    """What was noted there, by step and rank."""
    found = [dict(json.loads(path.read_bytes())) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda each: (str(each["step"]).zfill(9), str(each["rank"]).zfill(9)))


def _seconds(told: str | None) -> float:
    """NEURON_RT_EXEC_TIMEOUT, whole seconds; what is no number counts as the runtime's 30."""
    return float(told) if told and told.isdecimal() else USUAL_TIMEOUT_S
