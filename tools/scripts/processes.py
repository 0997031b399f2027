# SPDX-License-Identifier: Apache-2.0
"""The processes of scripts: copies of one that has imported PyTorch and trnlab, with a bound on processor time.

Imports are most of the time of a script that is tiny. What starts processes by itself (torchrun) pays for its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from trnlab.runtime.jobs.forks import Forks

IMPORTS = (
    ("torch", ("distributed", "_inductor.compile_fx")),
    ("trnlab.cli.run", ()),
    ("trnlab.runtime.device", ()),
    ("trnlab.frontends.torch", ("compile_step",)),
    ("trnlab.compiler.pipeline", ()),
    ("torchvision", ()),
)
LATE = 124
_BOUNDED = (
    "import resource; resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds})); "
    "from trnlab.runtime.jobs import forking; forking.run({arguments!r})"
)
_ready: dict[str, Forks] = {}


def ended(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: int) -> tuple[int, str]:
    """Status and output of `python ARGUMENTS`, each of whose processes may take so many seconds of processor time."""
    bounded = _BOUNDED.format(seconds=seconds, arguments=list(arguments))
    with tempfile.TemporaryFile("w+", errors="replace") as said, open(os.devnull) as nothing:
        files = [said.fileno(), said.fileno(), nothing.fileno()]
        process = _like(environment).start(["-c", bounded], environment, files, str(folder))
        try:
            status = process.wait(20 * seconds)
        except subprocess.TimeoutExpired:
            status = LATE
        finally:
            process.kill()
        said.seek(0)
        return LATE if status in (-signal.SIGXCPU, -signal.SIGKILL) else status, said.read()


def _like(environment: Mapping[str, str]) -> Forks:
    """The process to copy: one for each set of packages, which are found when they are imported."""
    where = environment.get("PYTHONPATH", "")
    if where not in _ready:
        usual = {name: value for name, value in environment.items() if not name.startswith("TRNLAB_")}
        _ready[where] = Forks(IMPORTS, usual)
    return _ready[where]


def close() -> None:
    """At the end."""
    for each in _ready.values():
        each.close()
    _ready.clear()
