# SPDX-License-Identifier: Apache-2.0
"""Steps of the demo on four ranks, with their values, against as many steps of four runs that know nothing of each
other: what ranks cost beyond what they compute. All are on the same processors at the same time.

`python -m benchmarks.ranks worker` is one of the processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from benchmarks import lines
from trnlab.runtime.jobs.ranks import environment

RANKS, STEPS, WARM, ROUNDS, PORT = 4, 6, 2, 3, 29731
ALONE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def worker() -> None:
    """Train the demo; print how long the steps took that were asked for by a line on stdin."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks import subject

    model, optimizer, batch = subject.model_and_batch("neuron")
    if "RANK" in os.environ:
        dist.init_process_group("neuron")
        model = DistributedDataParallel(model)
    step = subject.train_gpt.captured_step(model, optimizer)
    for _ in range(WARM):
        step(*batch)
    print("ready", flush=True)
    sys.stdin.readline()
    started, worked = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step(*batch)
    print(time.perf_counter() - started, time.process_time() - worked, flush=True)
    if "RANK" in os.environ:
        dist.destroy_process_group()


def together(environments: Sequence[Mapping[str, str]]) -> tuple[float, float]:
    """Of these workers, who start their steps at one time: seconds of the slowest, and processor seconds of all."""
    command = [sys.executable, "-m", "benchmarks.ranks", "worker"]
    workers = [
        subprocess.Popen(command, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for env in environments
    ]
    for each in workers:
        assert each.stdout is not None
        while (line := each.stdout.readline()) != "ready\n":
            if not line:
                raise RuntimeError("a worker ended before its first step")
    told = [_told(each) for each in _go(workers)]
    return max(wall for wall, _ in told), sum(worked for _, worked in told)


def _go(workers: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    for each in workers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    return workers


def _told(process: subprocess.Popen[str]) -> tuple[float, float]:
    said, _ = process.communicate()
    wall, worked = said.splitlines()[0].split()
    return float(wall), float(worked)


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as cache:
        given = {**os.environ, "TRNLAB_TARGET": "trn1.32xlarge", "TRNLAB_CACHE": cache}
        job = [environment(RANKS, rank, PORT, given) for rank in range(RANKS)]
        apart = [{name: value for name, value in env.items() if name not in ALONE} for env in job]
        measured = [[together(envs) for _ in range(ROUNDS)] for envs in (job, apart)]
    ranks, single = (min(wall for wall, _ in each) for each in measured)
    work, alone = (min(worked for _, worked in each) for each in measured)
    note = (
        f"{ranks / STEPS * 1e3:.0f} ms a step against {single / STEPS * 1e3:.0f} ms; processors {work / alone:.2f} x"
    )
    lines.report([lines.at_most("four ranks of the demo / four runs of it", ranks / single, 1.3, "x", note)])


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
