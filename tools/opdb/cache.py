# SPDX-License-Identifier: Apache-2.0
"""Known results, by everything they depend on: the job, the versions of PyTorch and NumPy, and the sources."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import trnlab
from tools.opdb.verdicts import Record

# The parts of trnlab that a value passes through; viewers, timing and the command line are not among them.
_PACKAGES = ("numerics", "chips", "isa", "graph", "program", "kernels", "compiler", "sim/functional", "frontends")


@functools.cache
def sources() -> str:
    """Digest of the sources that results depend on."""
    import numpy as np
    import torch

    digest = hashlib.sha256(f"{torch.__version__} {np.__version__}".encode())
    root = Path(trnlab.__file__).parent
    for folder in (*(root / p for p in _PACKAGES), Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            if path.name not in ("__main__.py", "report.py", "table.py"):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


class Cache:
    """One file per job in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, job: dict[str, Any]) -> Path:
        request = json.dumps([job, sources()], sort_keys=True)
        return self.folder / f"{hashlib.sha256(request.encode()).hexdigest()[:32]}.json"

    def get(self, job: dict[str, Any]) -> list[Record] | None:
        """The records of an equal job, or None."""
        path = self._path(job)
        if not path.exists():
            return None
        return [Record.from_json(r) for r in json.loads(path.read_text())]

    def put(self, job: dict[str, Any], records: list[Record]) -> None:
        """Keep the records of a job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(job).write_text(json.dumps([r.to_json() for r in records]))
