# SPDX-License-Identifier: Apache-2.0
"""A script as several ranks: starting them, and one folder for what they leave.

Where the system copies processes (Linux), ranks are copies of one that has made the imports which the script begins
with (`forks`, `leading_imports`); elsewhere, and with TRNLAB_RANKS=spawn, each is started by itself.

runs/<name>/                the run of rank 0, as ever; its summary has what all ranks say under `ranks`
runs/<name>/ranks/<rank>/   the runs of the others
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from trnlab import profile
from trnlab.errors import UsageError
from trnlab.files import json_of, write_atomic
from trnlab.profile import data
from trnlab.profile.summary import side_by_side
from trnlab.runtime.analysis import lanes
from trnlab.runtime.jobs import forks
from trnlab.runtime.jobs.leading_imports import Imports
from trnlab.units import PS_PER_S

PATIENCE_S = 20.0  # for ranks whose partner failed, to say so and end by themselves
PERIOD_S = 0.05
INTERRUPTED = 130
MOST_LANES = 512  # of a page
COMMAND = (sys.executable, "-m", "trnlab.cli.main", "run")
# What every rank imports.
OURS: Imports = (
    ("trnlab.cli.run", ()),
    ("trnlab.runtime.device", ()),
    ("trnlab.compiler.pipeline", ()),
)
CHOICE, FORK, SPAWN = "TRNLAB_RANKS", "fork", "spawn"
OF_EACH = frozenset({"RANK", "LOCAL_RANK"})
TOLD = ("status", "failure", "steps", "loss", "instructions", "network", "wall_s")


@dataclass(frozen=True)
class JobExit:
    """How a job ended: its exit status, and that of each rank, negative for a signal."""

    status: int
    ranks: tuple[int, ...]


class Running(Protocol):
    """A rank that was started: a `subprocess.Popen`, or a copy of a process."""

    returncode: int | None

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def wait(self) -> int:
        """Wait for its end."""

    def send_signal(self, number: int, /) -> None:
        """Send it a signal."""

    def terminate(self) -> None:
        """End it."""


@dataclass(frozen=True)
class _Started:
    process: Running
    output: IO[bytes]
    error: IO[bytes]


def folder_of(root: Path, rank: int) -> Path:
    """Where a rank keeps its run."""
    return root if rank == 0 else root / "ranks" / str(rank)


def environment(ranks: int, rank: int, port: int, given: Mapping[str, str]) -> dict[str, str]:
    """What a rank is told, in torchrun's variables; the host's processors are shared out equally."""
    threads = str(max(1, (os.cpu_count() or 1) // ranks))
    told = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {"OMP_NUM_THREADS": threads, **given, **{name: str(value) for name, value in told.items()}}


def check_choice(given: Mapping[str, str]) -> None:
    """Raise UsageError (TRN189) for a way of starting ranks that there is not, or not here."""
    chosen = given.get(CHOICE) or FORK
    if chosen not in (FORK, SPAWN):
        raise UsageError(
            f"there is no such way to start ranks as {CHOICE} says",
            code="TRN189",
            got=chosen,
            limit=f"{FORK}, {SPAWN}",
            remedy="unset it: ranks are copies of one process where that can be",
        )
    if given.get(CHOICE) == FORK and not forks.possible():
        raise UsageError(
            "ranks cannot be copies of one process on this system",
            code="TRN189",
            got=f"{CHOICE}={FORK}",
            limit="Linux",
            remedy=f"unset {CHOICE}, and each rank is started by itself",
        )


def start(ranks: int, arguments: Sequence[str], root: Path) -> int:
    """`trnlab run ARGUMENTS` once for each rank; returns the exit status: of the first that failed, else 0.

    Lines that a rank prints begin with its number. Where one fails, the others get time to say what they waited for.
    """
    return run(ranks, arguments, root, os.environ).status


def run(ranks: int, arguments: Sequence[str], root: Path, given: Mapping[str, str], imports: Imports = ()) -> JobExit:
    """As `start`, in an environment. imports: those that the script begins with."""
    port = _free_port()
    commands = [
        ([*COMMAND, "--out", str(folder_of(root, rank)), *arguments], environment(ranks, rank, port, given))
        for rank in range(ranks)
    ]
    check_choice(given)
    with _started(commands, given.get(CHOICE) != SPAWN and forks.possible(), (*OURS, *imports)) as started:
        running = [each.process for each in started]
        pumps = [
            threading.Thread(target=_pump, args=(rank, source, sink), daemon=True)
            for rank, each in enumerate(started)
            for source, sink in ((each.output, sys.stdout), (each.error, sys.stderr))
        ]
        for pump in pumps:
            pump.start()
        try:
            status = _ended(running)
        except KeyboardInterrupt:
            status = INTERRUPTED
            for process in running:
                process.send_signal(signal.SIGINT)
        statuses = tuple(process.wait() for process in running)
        for pump in pumps:
            pump.join()
    leave(root, ranks)
    return JobExit(status, statuses)


def leave(root: Path, ranks: int) -> None:
    """Put together what ranks that have ended left in their folders, and say what a step of all takes."""
    merge(root, ranks, ended=range(ranks))
    _tell(root)


@contextmanager
def _started(
    commands: Sequence[tuple[list[str], dict[str, str]]], copied: bool, imports: Imports
) -> Iterator[list[_Started]]:
    """All ranks, each with pipes for what it says."""
    started: list[_Started] = []
    with ExitStack() as stack:
        if copied:
            common = {name: value for name, value in commands[0][1].items() if name not in OF_EACH}
            waiting = stack.enter_context(forks.Forks(imports, common))
            with suppress(
                OSError
            ):  # it did not survive, as where memory is short: the others are started by themselves
                started += map(partial(_copied, waiting), commands)
        started += map(_spawned, commands[len(started) :])
        yield started


def _spawned(given: tuple[list[str], dict[str, str]]) -> _Started:
    command, told = given
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=told)
    assert process.stdout is not None
    assert process.stderr is not None
    return _Started(process, process.stdout, process.stderr)


def _copied(waiting: forks.Forks, given: tuple[list[str], dict[str, str]]) -> _Started:
    command, told = given
    pipes = os.pipe(), os.pipe()
    output, error = (os.fdopen(reads, "rb") for reads, _ in pipes)
    try:
        process = waiting.start(command[1:], told, [writes for _, writes in pipes])
    finally:
        for _, writes in pipes:
            os.close(writes)
    return _Started(process, output, error)


def _tell(root: Path) -> None:
    """Say how long a step of all ranks takes, where that is known."""
    try:
        together = json_of((root / data.FILE).read_bytes()).get("together")
    except (OSError, ValueError):
        return  # rank 0 was killed before it wrote anything
    if together:
        print(f"\n{side_by_side(together)}; side by side in {root / profile.REPORT}")


def _pump(rank: int, source: IO[bytes], sink: Any) -> None:
    with source:
        for line in source:
            sink.write(f"[rank {rank}] {line.decode(errors='replace')}")
            sink.flush()


def _ended(running: Sequence[Running]) -> int:
    """Wait for all; once one has failed, only for so long."""
    failed, since = 0, 0.0
    while any(process.poll() is None for process in running):
        time.sleep(PERIOD_S)
        statuses = [process.poll() for process in running]
        if not failed and any(statuses):
            failed, since = next(status for status in statuses if status), time.monotonic()
        if failed and time.monotonic() - since > PATIENCE_S:
            for process in running:
                process.terminate()
            since = float("inf")
    failed = failed or next((process.returncode for process in running if process.returncode), 0)
    return failed if failed >= 0 else 128 - failed


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def merge(root: Path, ranks: int, ended: Container[int] = ()) -> None:
    """Put what all ranks say into the summary of rank 0. `ended`: those that do not run any more.

    One of them that left no summary, or one that says it still runs, was killed.
    """
    said = [_said(folder_of(root, rank), rank, rank in ended) for rank in range(ranks)]
    path = root / data.FILE
    try:
        summary = json_of(path.read_bytes())
    except (OSError, ValueError):
        return  # rank 0 was killed before it wrote anything
    summary["ranks"] = said
    if any(each["status"] in ("failed", "killed") for each in said):
        summary["status"], summary["complete"] = "failed", False
    well = all(each["status"] == "complete" for each in said)
    together = _together(root, ranks) if well and ranks <= MOST_LANES else None
    if together is not None:
        write_atomic(root / data.TOGETHER, json.dumps(together, separators=(",", ":")).encode())
        summary["together"] = {
            "step_s": together["total_ps"] / PS_PER_S,
            "unmatched": together["unmatched"],
            "lanes": [{"ranks": lane["ranks"], "waits_s": lane["waits_ps"] / PS_PER_S} for lane in together["lanes"]],
        }
    write_atomic(path, json.dumps(summary, indent=2).encode())
    if together is not None and (root / profile.REPORT).exists():
        profile.render(root)  # with all ranks in it


def _together(root: Path, ranks: int) -> dict[str, Any] | None:
    """A step of all ranks, where each left its own."""
    try:
        steps = [json_of((folder_of(root, rank) / lanes.FILE).read_bytes()) for rank in range(ranks)]
    except (OSError, ValueError):
        return None
    return lanes.together(steps)


def running(root: Path, ranks: int) -> list[int]:
    """Ranks whose summary says that they still run, or that have none yet."""
    return [rank for rank in range(ranks) if _said(folder_of(root, rank), rank, False)["status"] == "running"]


def _said(folder: Path, rank: int, ended: bool) -> dict[str, Any]:
    try:
        found = json_of((folder / data.FILE).read_bytes())
    except (OSError, ValueError):
        return {"rank": rank, "status": "killed" if ended else "running"}
    told = {name: found[name] for name in TOLD if name in found}
    if ended and told["status"] == "running":
        told["status"] = "killed"
    return {"rank": rank, **told}


def without(arguments: Sequence[str], *options: str) -> list[str]:
    """Arguments of a command without some of its options, which have a value each and stand before the script."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in options:
            next(rest, None)
        elif not argument.startswith(tuple(f"{option}=" for option in options)):
            kept.append(argument)
    return kept


def check_count(ranks: int) -> None:
    """Raise UsageError (TRN276) for a number of ranks that cannot be."""
    if ranks < 1:
        raise UsageError("a script has at least one rank", code="TRN276", got=ranks, remedy="--ranks 4")
