# SPDX-License-Identifier: Apache-2.0
"""A worker process that is started again when an operator takes it down or does not come back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

from tools.opdb.verdicts import FAILED, Record, Verdict

_WALL = 12.0  # wall-clock seconds granted per second of processor time: machines are shared
_BRIEFEST = 120.0  # the first operators compile the simulator's loops


class Worker:
    """Runs jobs one after another in a process of its own."""

    def __init__(self, chip: str) -> None:
        self._chip = chip
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: dict[str, Any]) -> list[Record]:
        """The job's records; one failure per mode when the process ended or had to be ended."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(max(_BRIEFEST, _WALL * job["seconds"]), end)
        timer.start()
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if answer:
            return [Record.from_json(r) for r in json.loads(answer)]
        status = process.wait()
        self._process = None
        code, reason = (
            ("timeout", "never came back") if late.is_set() else ("crash", f"the process ended with {status}")
        )
        verdict = Verdict(FAILED, code, reason)
        return [Record(job["op"], job["dtype"], 0, "", "forward", mode, verdict) for mode in job["modes"]]

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-W", "ignore", "-m", "tools.opdb.worker", self._chip]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert self._process.stdout is not None
            self._process.stdout.readline()  # "ready": what it imports and compiles is no operator's time
        return self._process
