# SPDX-License-Identifier: Apache-2.0
"""The demo's step from PyTorch code to a loaded program: compiled with an empty cache, and read from a full one.

Each is measured in a fresh process. Imports and the making of the model do not count; capturing counts as part of the
cold compile, and is shown apart for the warm one, where it is what PyTorch takes to trace the step, cache or not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import lines

WARM_ROUNDS = 3


def compile_once(cache: Path) -> None:
    """In a fresh process: capture, then compile or read, then load; prints the seconds of each half."""
    from benchmarks import subject
    from trnlab.frontends.torch.capture.step_capture import capture_step
    from trnlab.runtime.device import Loaded, compile_graph

    session = subject.session(cache)
    model, optimizer, batch = subject.model_and_batch("neuron")
    start = time.perf_counter()
    captured = capture_step(model, optimizer, None, batch, max_norm=subject.train_gpt.MAX_NORM)
    middle = time.perf_counter()
    executable = compile_graph(captured.graph, session)
    Loaded(executable, session)
    print(json.dumps([middle - start, time.perf_counter() - middle, executable.cache]))


def fresh_process(cache: str) -> tuple[float, float, str]:
    """What `compile_once` measured."""
    command = [sys.executable, "-m", "benchmarks.compile", cache]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    capture, rest, found = json.loads(done.stdout.splitlines()[-1])
    return capture, rest, found


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as cache:
        capture, compiling, found = fresh_process(cache)
        assert found == "miss", found
        warm = [fresh_process(cache) for _ in range(WARM_ROUNDS)]
        assert {found for *_, found in warm} == {"hit"}, warm
    tracing, reading = (min(values) for values in list(zip(*warm))[:2])
    lines.report(
        [
            lines.at_most(
                "demo's step captured and compiled, cold",
                capture + compiling,
                30,
                "s",
                f"{capture:.1f} s of it captured by PyTorch",
            ),
            lines.at_most(
                "demo's step from the cache, warm",
                reading,
                1,
                "s",
                f"after {tracing:.1f} s to capture the graph that is looked up",
            ),
        ]
    )


if __name__ == "__main__":
    compile_once(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
