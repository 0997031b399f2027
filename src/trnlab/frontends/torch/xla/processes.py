# SPDX-License-Identifier: Apache-2.0
"""torch_xla.distributed.xla_multiprocessing: the ranks of a script that starts them itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from trnlab import checks, policy
from trnlab.errors import UsageError
from trnlab.fabric.cluster import Cluster
from trnlab.frontends.torch.xla import ranks
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.utils import get_free_tcp_ports
from trnlab.runtime import session
from trnlab.runtime.jobs import elastic
from trnlab.runtime.jobs.ranks import folder_of
from trnlab.runtime.notices import say
from trnlab.runtime.run import RunRecord
from trnlab.runtime.script import record

__all__ = ["MpModelWrapper", "MpSerialExecutor", "spawn"]
CORES = ("NEURONCORE_NUM_DEVICES", "NEURON_RT_NUM_CORES")


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """fn(rank, *args) in a process for each rank.

    In a process that is a rank already (torchrun, `trnlab run --ranks`) it is called here. Else there are `nprocs`
    of them, or as many as NEURONCORE_NUM_DEVICES or NEURON_RT_NUM_CORES say, or one, which is this process.
    """
    if "WORLD_SIZE" in os.environ:
        fn(ranks.local_ordinal(), *args)
        return None
    size = nprocs or _told()
    if size == 1:
        fn(0, *args)
        return None
    here = session.current()
    elastic.require_room(elastic.ElasticSize(size, size), here)
    now = {"TRNLAB_TARGET": Cluster(here.target, here.instances).name, "TRNLAB_PRECISION": here.precision}
    told = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(get_free_tcp_ports()[0]),
    }
    os.environ.update(now)  # which the children's `import torch` reads
    run, kept = here.run, None
    if isinstance(run, RunRecord) and not run.calls:  # else what this process did itself would be lost
        run.ranks = size
        kept = _Kept(run.folder, run.script, run.arguments)
    return torch.multiprocessing.start_processes(
        _ranked,
        (fn, told, args, _Settings.of(here), kept),
        nprocs=size,
        join=join,
        daemon=daemon,
        start_method=start_method,
    )


@dataclass(frozen=True)
class _Settings:
    """What the command line told the process that starts the ranks, and holds for them as well."""

    options: dict[str, Any]  # of the session
    levels: dict[str, str]  # of checks
    schedule: str | policy.Policy | None

    @classmethod
    def of(cls, here: session.Session) -> _Settings:
        return cls(here.settings_to_send(), checks.configured(), policy.configured())

    def hold(self) -> None:
        """Have this process do as it is told."""
        session.current().adopt(self.options)
        checks.configure(self.levels)
        if self.schedule is not None:
            policy.configure(self.schedule)


@dataclass(frozen=True)
class _Kept:
    """The run that starts the ranks, for each to keep its own in it, as those of `trnlab run --ranks` do."""

    folder: Path
    script: Path
    arguments: list[str]


def _ranked(
    rank: int,
    fn: Callable[..., Any],
    told: dict[str, str],
    args: tuple[Any, ...],
    settings: _Settings,
    kept: _Kept | None,
) -> None:
    os.environ.update(told, RANK=str(rank), LOCAL_RANK=str(rank))
    settings.hold()
    if kept is None:
        fn(rank, *args)
        return
    here = session.current()
    raised: list[BaseException] = []

    def work() -> int:
        try:
            fn(rank, *args)
        except BaseException as error:
            raised.append(error)
            assert isinstance(here.run, RunRecord)
            here.run.failed(error)
        return int(bool(raised))

    folder = folder_of(kept.folder, rank)
    record(kept.script, kept.script.stem, kept.arguments, here, folder, work)
    if raised:  # which `torch.multiprocessing` shows
        raise raised[0]


def _told() -> int:
    """How many ranks the environment asks for."""
    found = next((os.environ[name] for name in CORES if os.environ.get(name)), "")
    if not found:
        say(f"xmp.spawn: one rank, in this process; for several set {CORES[0]}=2, or use trnlab run --ranks 2")
        return 1
    if not found.isdecimal() or not int(found):
        raise UsageError(
            f"{CORES[0]} is no number of ranks",
            code="TRN298",
            limit="a whole number from 1 on",
            got=found,
            remedy="set it to such as 2, or unset it",
        )
    return int(found)


class MpModelWrapper:
    """A model that is moved to the device of each rank, one rank after another."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._lock = model, threading.Lock()

    def to(self, device: Any) -> torch.nn.Module:
        """The model on a device."""
        with self._lock:
            return self._model.to(device)


class MpSerialExecutor:
    """Runs a function in one process at a time; of the threads of one process, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def run(self, fn: Callable[[], Any]) -> Any:
        """fn()."""
        with self._lock:
            return fn()


launch = spawn
__getattr__ = refusing(
    "torch_xla.distributed.xla_multiprocessing",
    "there are spawn and MpModelWrapper",
    ("create_optimized_replica_groups",),
)
