# SPDX-License-Identifier: Apache-2.0
"""Record kernels from their sources and time them, as `trnlab run` would."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from trnlab import chips, policy
from trnlab.errors import TrnlabError
from trnlab.lang.formats import format_of
from trnlab.nki import install_imports
from trnlab.nki.kernel import Kernel
from trnlab.runtime import session
from trnlab.sim.timing import time_routine
from trnlab.timeline import Timeline
from trnlab.validation.sources import observed, results
from trnlab.validation.sources.catalogue import CatalogueCall, SourceKernel
from trnlab.validation.sources.checkout import profile_of, source_of
from trnlab.validation.sources.observed import Quantity, compare
from trnlab.validation.sources.recording_cache import RecordingCache, StoredRecording
from trnlab.validation.sources.results import KernelRow, TimedKernel
from trnlab.validation.sources.versions import MODEL, version

# What snippets take for granted.
PROLOGUE = (
    "import neuronxcc.nki as nki; import neuronxcc.nki.language as nl; import neuronxcc.nki.isa as nisa; "
    "import neuronxcc.nki.typing as nt; import numpy as np; import math\n"
)
DIALECTS = ("neuronxcc", "nki")
Make = Callable[[], list[StoredRecording]]
_ARRAY = re.compile(r"(\w+)\[([\d, ]*)\]")


def time_all(
    kernels: Iterable[SourceKernel],
    folder: Path,
    progress: Callable[[SourceKernel, int, int], None] = lambda kernel, number, of: None,
    kept: RecordingCache | None = None,
    *,
    band: bool = False,
) -> list[KernelRow]:
    """Time each kernel from its source in `folder`; those that took long come last.

    progress: told of each kernel before its turn, with its number and how many there are. band: time it under the
    alternatives of the policy, too.
    """
    wanted = list(kernels)
    seconds = {row.timed.kernel.id: row.timed.seconds for row in results.recorded(wanted)}
    rows: dict[str, KernelRow] = {}
    for number, kernel in enumerate(sorted(wanted, key=lambda k: seconds.get(k.id, 0.0))):
        progress(kernel, number + 1, len(wanted))
        row = row_of(kernel, folder, kept or RecordingCache(None))
        others = alternatives(kernel, folder, kept or RecordingCache(None)) if band else ()
        rows[kernel.id] = replace(row, alternatives=others)
    return [rows[kernel.id] for kernel in wanted]


def row_of(kernel: SourceKernel, folder: Path, kept: RecordingCache) -> KernelRow:
    """The result for one kernel, kept or made now. Raises UsageError (TRN129) where its source is not there."""
    source, dump = source_of(kernel, folder), profile_of(kernel, folder)
    policies = [policy.chosen(kernel.chip, dialect) for dialect in DIALECTS]
    launches = [[launch.function, *launch.arguments] for launch in kernel.launches]
    content = [source, launches, dict(kernel.options), kernel.flags, kernel.chip]
    recording = [*content, [p.recording for p in policies]]

    def make() -> KernelRow:
        timed = _time(kernel, source, dump, lambda make: kept.recordings(recording, make))
        return KernelRow(timed, datetime.now(UTC).date().isoformat(), version(MODEL), str(policies[0]))

    return kept.result(kernel, [*content, [repr(p) for p in policies], kernel.statistic, dump], make)


def time_one(kernel: SourceKernel, folder: Path) -> TimedKernel:
    """Time one kernel. Raises UsageError (TRN129) where its source is not there."""
    return row_of(kernel, folder, RecordingCache(None)).timed


def alternatives(kernel: SourceKernel, folder: Path, kept: RecordingCache) -> tuple[tuple[str, int], ...]:
    """The kernel under every policy that the evidence does not exclude either: its name, and picoseconds."""
    found = []
    for other in policy.alternatives(policy.chosen(kernel.chip, DIALECTS[0])).values():
        with policy.use(other):
            predicted = row_of(kernel, folder, kept).timed.predicted
        found += [] if predicted is None else [(str(other), round(predicted))]
    return tuple(found)


def _time(kernel: SourceKernel, source: str, dump: Any, kept: Callable[[Make], list[StoredRecording]]) -> TimedKernel:
    """kept: gives the recordings, calling its argument where it has to make them."""
    began = time.perf_counter()
    try:
        with session.activate(_session(kernel)):
            recordings = kept(lambda: _recorded(kernel, source))
            timelines = [_timed(recorded, kernel, dump) for recorded in recordings]
            quantities = () if dump is None else _compared(dump, recordings[0], timelines[0])
    except TrnlabError as error:
        return TimedKernel(kernel, None, f"{error.code}: {error.what}", seconds=time.perf_counter() - began)
    total = sum(t.total for t in timelines)
    return TimedKernel(kernel, total, "", sum(map(len, timelines)), time.perf_counter() - began, quantities)


def _session(kernel: SourceKernel) -> session.Session:
    """The kernel alone on its chip: no other core uses the HBM."""
    chip = chips.with_cores_at_work(chips.get(kernel.chip), 1)
    target = next(t for t in chips.TARGETS.values() if t.chip.name == kernel.chip)
    return session.Session(replace(target, chip=chip))


def _recorded(kernel: SourceKernel, source: str) -> list[StoredRecording]:
    install_imports()
    with _module(source, kernel.id) as module:
        return [_record(getattr(module, launch.function), launch, kernel) for launch in kernel.launches]


def _record(function: Any, launch: CatalogueCall, kernel: SourceKernel) -> StoredRecording:
    assert isinstance(function, Kernel), f"{kernel.id}: {launch.function} is no kernel"
    function.flags = " ".join(kernel.flags)
    routine = function.trace(*map(_argument, launch.arguments), **kernel.options).routine
    chip = session.current().chip
    usual, own = policy.chosen(chip.name, function.dialect).values(), function.policy(chip).values()
    return StoredRecording(routine, function.dialect, tuple(name for name in usual if usual[name] and not own[name]))


def _timed(recorded: StoredRecording, kernel: SourceKernel, dump: Any) -> Timeline:
    """With the half-rate windows of the profile, where there is one."""
    chip = session.current().chip
    phase = None if dump is None else observed.window_phase(dump, chip.tensor.rate_window.value)
    profiled, choice = kernel.statistic == "profile", recorded.policy(chip.name)
    return time_routine(recorded.routine, chip, profiled=profiled, window_phase=phase, policy=choice)


def _compared(dump: Any, recorded: StoredRecording, timeline: Timeline) -> tuple[Quantity, ...]:
    chip = session.current().chip
    full_rate = time_routine(
        recorded.routine, chip, profiled=True, policy=recorded.policy(chip.name).with_options(half_rate="off")
    )
    return tuple(compare(observed.of_dump(dump), observed.of_timeline(timeline, recorded.routine, full_rate)))


def _argument(text: Any) -> Any:
    found = _ARRAY.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return text
    shape = tuple(int(n) for n in found[2].split(",") if n.strip())
    return np.zeros(shape, format_of(found[1]).dtype)


@contextmanager
def _module(source: str, name: str) -> Iterator[ModuleType]:
    """The source as a module in a file, since recording reads the lines of kernels. What it sets in the environment
    is forgotten with it."""
    environment = dict(os.environ)
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
            os.environ.clear()
            os.environ.update(environment)
