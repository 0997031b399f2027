# SPDX-License-Identifier: Apache-2.0
"""Record kernels from their sources and time them, as `trnlab run` would."""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from trnlab import chips
from trnlab.errors import TrnlabError
from trnlab.lang.formats import format_of
from trnlab.nki import install_imports
from trnlab.nki.kernel import Kernel
from trnlab.runtime import session
from trnlab.sim.timing import time_routine
from trnlab.validation.sources.catalogue import Launch, SourceKernel
from trnlab.validation.sources.checkout import source_of

# What snippets take for granted.
PROLOGUE = (
    "import neuronxcc.nki as nki; import neuronxcc.nki.language as nl; import neuronxcc.nki.isa as nisa; "
    "import neuronxcc.nki.typing as nt; import numpy as np; import math\n"
)
_ARRAY = re.compile(r"(\w+)\[([\d, ]*)\]")


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel with what came out: picoseconds, or why it was refused. seconds: what recording and timing took."""

    kernel: SourceKernel
    predicted: float | None
    refusal: str = ""
    instructions: int = 0
    seconds: float = 0.0

    @property
    def error(self) -> float | None:
        """Relative to what was measured; positive when the prediction is too long; None for a refusal."""
        return None if self.predicted is None else self.predicted / self.kernel.measured - 1


def time_all(
    kernels: Iterable[SourceKernel], folder: Path, progress: Callable[[Timed], None] = lambda timed: None
) -> list[Timed]:
    """Time each kernel from its source in `folder`, telling `progress` of each."""
    results = []
    for kernel in kernels:
        results.append(time_one(kernel, folder))
        progress(results[-1])
    return results


def time_one(kernel: SourceKernel, folder: Path) -> Timed:
    """Time one kernel. Raises UsageError (TRN129) where its source is not there."""
    install_imports()
    source, began = source_of(kernel, folder), time.perf_counter()
    try:
        with _module(source, kernel.id) as module, session.activate(_session(kernel)):
            timelines = [_timed(getattr(module, launch.function), launch, kernel) for launch in kernel.launches]
    except TrnlabError as error:
        return Timed(kernel, None, f"{error.code}: {error.what}", seconds=time.perf_counter() - began)
    total = sum(t.total for t in timelines)
    return Timed(kernel, total, "", sum(map(len, timelines)), time.perf_counter() - began)


def _session(kernel: SourceKernel) -> session.Session:
    """The kernel alone on its chip: no other core uses the HBM."""
    chip = chips.with_cores_at_work(chips.get(kernel.chip), 1)
    target = next(t for t in chips.TARGETS.values() if t.chip.name == kernel.chip)
    return session.Session(replace(target, chip=chip))


def _timed(function: Any, launch: Launch, kernel: SourceKernel) -> Any:
    assert isinstance(function, Kernel), f"{kernel.id}: {launch.function} is no kernel"
    function.flags = " ".join(kernel.flags)
    traced = function.trace(*map(_argument, launch.arguments), **kernel.options)
    chip = session.current().chip
    return time_routine(traced.routine, chip, profiled=kernel.statistic == "profile")


def _argument(text: Any) -> Any:
    found = _ARRAY.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return text
    shape = tuple(int(n) for n in found[2].split(",") if n.strip())
    return np.zeros(shape, format_of(found[1]).dtype)


@contextmanager
def _module(source: str, name: str) -> Iterator[ModuleType]:
    """The source as a module in a file, since recording reads the lines of kernels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(PROLOGUE + source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"_sources_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            del sys.modules[spec.name]
