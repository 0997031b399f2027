# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as files in a store: begun, written by every rank, done; several kept; the newest whole one found.

    step_00000200/checkpoint           begun
    step_00000200/rank_00000/<file>    what rank 0 keeps, as it likes
    step_00000200/rank_00000.json      sizes and SHA-256 of its files, written after them
    step_00000200/.metadata            where each tensor lies, for torch.distributed.checkpoint
    step_00000200/done                 all ranks have written theirs: sizes and SHA-256 of these, and of itself
    newest                             the name of the newest that is done, for stores whose listings lag

The markers are those of the vendor's library. A checkpoint without `done` is never read; one that is done is read
only when every file has its size and digest (`storage.finished_checkpoint`), and otherwise the one before it is
taken, which is said. Where there are checkpoints and none can be read it is an error: nothing begins anew by mistake.

Each rank reads and checks its own files once, and the ranks agree on the newest checkpoint that all of them found
whole: `Agreement` says how they talk. Without one, each rank checks the files of all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trnlab.errors import RunError
from trnlab.storage.finished_checkpoint import (
    BEGUN,
    DONE,
    METADATA,
    OLDER,
    FinishedCheckpoint,
    folder_of,
    name_of,
    read_record,
    record_of,
)
from trnlab.storage.plain_files import NotPlainFileError
from trnlab.storage.seals import Content, described, pieces, sealed
from trnlab.storage.store import Store
from trnlab.storage.store_errors import reason

__all__ = [
    "BEGUN",
    "DONE",
    "METADATA",
    "NEWEST",
    "Agreement",
    "Checkpoint",
    "CheckpointInProgress",
    "Checkpoints",
    "Content",
    "folder_of",
    "name_of",
    "pieces",
]

NEWEST = "newest"
_STEP = re.compile(r"^step_(\d{8,})$")
_OURS = re.compile(rf"{BEGUN}|{DONE}|{re.escape(METADATA)}|rank_\d{{5,}}(\.json|/.+)")  # of a step's folder
PATIENCE_S, POLL_S = 600.0, 0.1
STALL_S = 60.0  # that requests of one checkpoint are tried again, all together: training may wait for them
GRACE_S = 10.0  # for the others' parts, once the job has failed


@dataclass(frozen=True)
class Checkpoint:
    """One of a store."""

    step: int
    done: bool  # whether all ranks wrote theirs
    size: int  # bytes of its files
    created: float  # seconds since 1970

    @property
    def name(self) -> str:
        """Its folder."""
        return name_of(self.step)


class Agreement(Protocol):
    """How the ranks of a job come to one answer, all asking the same questions in the same order."""

    def first(self, value: str) -> str:
        """What rank 0 gave."""
        ...

    def all(self, ok: bool) -> bool:
        """Whether every rank gave true."""
        ...


@dataclass
class Checkpoints:
    """The checkpoints of a run in `store`, as rank `rank` of `ranks` sees them; `keep` of them stay.

    index: makes of what all ranks wrote down of their files (`about` of `save`) the files of the whole checkpoint.
    """

    store: Store
    rank: int = 0
    ranks: int = 1
    keep: int = 3
    messages: list[str] = field(default_factory=list)  # lines to say
    agreement: Agreement | None = None
    index: Callable[[list[dict[str, Any]]], Mapping[str, bytes]] | None = None
    failed: threading.Event = field(default_factory=threading.Event)  # set: the job ends, other ranks may be gone
    attempt: str = ""  # that all ranks agreed on: what an earlier one of the job left is not taken for this one's

    # -- writing ------------------------------------------------------------------------------------------------
    def save(self, step: int, files: Mapping[str, Content], about: Mapping[str, Any] | None = None) -> None:
        """Write the files of this rank; rank 0 also waits for the others, and marks it done. about: what is to be
        known of the files without reading them, as JSON has it. Raises RunError (TRN531)."""
        name = name_of(step)
        try:
            with self.store.within(STALL_S):
                if self.rank == 0:
                    self.store.delete(f"{name}/{DONE}")
                    self.store.write(f"{name}/{BEGUN}", b"")
                self.store.delete(f"{name}/{record_of(self.rank)}")  # of an attempt whose files are overwritten
                for file, content in files.items():
                    self.store.write(f"{name}/{folder_of(self.rank)}/{file}", *pieces(content))
                described_files = {file: described(content) for file, content in files.items()}
                self._write_record(step, self.rank, described_files, about)
            if self.rank == 0:
                self._finish(step)
        except OSError as error:
            self._give_up(step)
            raise RunError(
                f"the checkpoint of step {step} cannot be written: {reason(error)}",
                code="TRN531",
                got=self.store.url,
                remedy="free some space, or check the permissions; the ones before it are kept",
            ) from error

    def _write_record(self, step: int, rank: int, files: Mapping[str, Any], about: Mapping[str, Any] | None) -> None:
        record = {"step": step, "ranks": self.ranks, "files": files, "about": about or {}}
        record |= {"attempt": self.attempt} if self.attempt else {}
        self.store.write(f"{name_of(step)}/{record_of(rank)}", json.dumps(record).encode())

    def _give_up(self, step: int) -> None:
        """Take away what this rank wrote of a checkpoint that will not be done: a full disk is not to stay full."""
        name = name_of(step)
        with contextlib.suppress(OSError), self.store.within(GRACE_S):
            mine = [item.name for item in self.store.items(f"{name}/{folder_of(self.rank)}/")]
            of_all = [f"{name}/{each}" for each in (DONE, METADATA, BEGUN)] if self.rank == 0 else []
            self.store.delete(*of_all, f"{name}/{record_of(self.rank)}", *mine)
            self.store.remove_folder(f"{name}/{folder_of(self.rank)}/")
            if self.ranks == 1:
                self.store.remove_folder(f"{name}/")

    def _finish(self, step: int) -> None:
        """Mark it done when all ranks have written, and take old ones away."""
        started = time.monotonic()
        for rank in range(self.ranks):
            while not self._has_written(step, rank):
                waited = time.monotonic() - started
                if waited > PATIENCE_S or (self.failed.is_set() and waited > GRACE_S):
                    raise TimeoutError(f"rank {rank} has not written its part")
                time.sleep(POLL_S)
        with self.store.within(STALL_S):
            self.finish(step)
            self._prune(step)

    def _has_written(self, step: int, rank: int) -> bool:
        """Whether a rank has written its part, in this attempt."""
        if not self.attempt or rank == self.rank:
            return self.store.exists(f"{name_of(step)}/{record_of(rank)}")
        try:
            return read_record(self.store, step, rank)[0].get("attempt") == self.attempt
        except (FileNotFoundError, RunError):
            return False

    def finish(self, step: int) -> None:
        """Mark one done of which every rank's files are there. Raises OSError, RunError (TRN532)."""
        name, known, abouts = name_of(step), {BEGUN: described(b"")}, []
        for rank in range(self.ranks):
            record, content = read_record(self.store, step, rank)
            known[record_of(rank)] = described(content)
            abouts.append(record.get("about") or {})
        for file, content in ({} if self.index is None else self.index(abouts)).items():
            self.store.write(f"{name}/{file}", content)
            known[file] = described(content)
        self.store.write(f"{name}/{DONE}", sealed({"step": step, "ranks": self.ranks, "files": known}))
        try:
            self.store.write(NEWEST, name.encode())
        except IsADirectoryError:  # it is a hint, for listings that are not of now
            self.messages.append(f"{NEWEST} is a folder, and does not name the checkpoint of step {step}")

    def _prune(self, newest: int) -> None:
        """Keep the newest, and take away the others and what was never finished, `done` first."""
        found = self.all()
        kept = [c.step for c in found if c.done and c.step <= newest][: self.keep]
        for checkpoint in found:
            if checkpoint.step not in kept and checkpoint.step <= newest:
                self.remove(checkpoint.step)

    def remove(self, step: int) -> None:
        """Take a checkpoint away, so that one who is stopped half way leaves none that is done: what checkpoints
        write, by name. What else somebody put or linked there stays. Raises OSError."""
        name = name_of(step)
        self.store.delete(f"{name}/{DONE}")
        found = [item.name for item in self.store.items(f"{name}/")]
        ours = [each for each in found if _OURS.fullmatch(each.removeprefix(f"{name}/"))]
        self.store.delete(f"{name}/{METADATA}", *ours)
        self.store.remove_folder(f"{name}/")

    # -- reading ------------------------------------------------------------------------------------------------
    def all(self) -> list[Checkpoint]:
        """What there is, newest first, finished or not. Raises OSError."""
        sizes: dict[int, list[tuple[str, int, float]]] = {}
        for item in self.store.items():
            folder, _, rest = item.name.partition("/")
            if (match := _STEP.match(folder)) is not None:
                sizes.setdefault(int(match[1]), []).append((rest, item.size, item.modified))
        found = [
            Checkpoint(
                step, any(n == DONE for n, *_ in items), sum(s for _, s, _ in items), max(t for *_, t in items)
            )
            for step, items in sizes.items()
        ]
        return sorted(found, key=lambda c: -c.step)

    def load_newest(self, other_ranks: bool = False) -> tuple[int, dict[str, bytes]] | None:
        """The newest whole checkpoint: its step and the files of this rank; None where none was ever finished.

        other_ranks: one of another number of ranks will do: this rank then gets the files of rank modulo that number.
        Raises RunError: TRN531 when the store cannot be read, TRN532 when none of those that are done is whole,
        TRN530 when it is of another number of ranks.
        """
        steps = self._candidates()
        for step in steps:
            problem, files = self._tried(step, other_ranks)
            whole = not problem
            if self.agreement is not None and self.ranks > 1:
                whole = self.agreement.all(whole)
            if whole and files is not None:
                self._say_of_older(step)
                return step, files
            self.messages.append(
                f"the checkpoint of step {step} is not whole, the one before it is taken: "
                f"{problem or 'another rank says so'}"
            )
        if steps:
            raise RunError(
                "no checkpoint is whole",
                code="TRN532",
                got=", ".join(map(str, steps)),
                limit=self.store.url,
                remedy="see `trnlab checkpoint verify`; to begin anew, name another place or remove these",
            )
        return None

    def _say_of_older(self, step: int) -> None:
        with contextlib.suppress(OSError, RunError):
            if self.rank == 0 and not self.finished(step).covered:
                self.messages.append(f"the checkpoint of step {step} was {OLDER}")

    def _candidates(self) -> list[int]:
        """The steps that are done, newest first; the same for all ranks where they can agree."""
        alone = self.agreement is None or self.ranks == 1
        steps: list[int] = []
        if alone or self.rank == 0:
            try:
                steps = sorted({c.step for c in self.all() if c.done} | self._hinted(), reverse=True)
            except OSError as error:
                if not alone and self.agreement is not None:
                    self.agreement.first("unreadable")
                raise self._unreadable(error) from error
        if alone or self.agreement is None:
            return steps
        told = self.agreement.first(",".join([uuid.uuid4().hex, *map(str, steps)]))
        if told == "unreadable":
            raise self._unreadable(OSError(errno.EIO, "rank 0 cannot read them", self.store.url))
        self.attempt, *agreed = told.split(",")
        return [int(step) for step in agreed]

    def _tried(self, step: int, other_ranks: bool) -> tuple[str, dict[str, bytes] | None]:
        """What is wrong with a checkpoint, and the files of this rank where nothing is. Raises RunError: TRN531 where
        the store cannot be read, TRN530 for another number of ranks."""
        alone = self.agreement is None or self.ranks == 1  # then nobody else can say what became of others' files
        try:
            found = self.finished(step)
            self._require_ranks(found, other_ranks)
            mine = self.rank % found.ranks
            problems = found.of_all() if alone or self.rank == 0 else []
            looked = range(found.ranks) if alone else range(self.rank, found.ranks, self.ranks)
            problems = problems or found.of_ranks(rank for rank in looked if rank != mine)
            return (problems[0], None) if problems else ("", found.files(mine))
        except FileNotFoundError as error:
            return f"something of {folder_of(self.rank)} is missing ({error})", None
        except OSError as error:
            if self.agreement is not None and self.ranks > 1:
                self.agreement.all(False)
            raise self._unreadable(error) from error
        except RunError as error:
            if error.code == "TRN530":
                raise
            return error.what, None

    def finished(self, step: int) -> FinishedCheckpoint:
        """A finished checkpoint, to be read. Raises FileNotFoundError, OSError, RunError (TRN532)."""
        return FinishedCheckpoint(self.store, f"{name_of(step)}/", step)

    def load(self, step: int, other_ranks: bool = False) -> dict[str, bytes]:
        """The files of this rank, checked. Raises OSError, and RunError: TRN530 for another number of ranks, unless
        `other_ranks`; TRN532 for what is not whole."""
        found = self.finished(step)
        self._require_ranks(found, other_ranks)
        return found.files(self.rank % found.ranks)

    def _require_ranks(self, found: FinishedCheckpoint, other_ranks: bool) -> None:
        if found.ranks != self.ranks and not other_ranks:
            raise RunError(
                "the checkpoint is of another number of ranks",
                code="TRN530",
                limit=found.ranks,
                got=self.ranks,
                remedy="start as many ranks as wrote it; with trnlab.checkpoint in the script any number will do",
            )

    def ranks_of(self, step: int) -> int:
        """How many ranks wrote a finished checkpoint. Raises FileNotFoundError, OSError, RunError (TRN532)."""
        return self.finished(step).ranks

    def problems(self, step: int) -> list[str]:
        """What is not as it was written, of all ranks; nothing for a whole checkpoint. Raises OSError."""
        try:
            return self.finished(step).problems()
        except FileNotFoundError:
            return ["it was never finished"]
        except RunError as error:
            return [error.what]

    def astray(self) -> str:
        """What is wrong with the name of the newest, or nothing where it is that of a done one. Raises OSError."""
        try:
            told = self.store.read(NEWEST, 1 << 10).decode()
        except FileNotFoundError:
            return ""
        except (UnicodeDecodeError, NotPlainFileError):
            return f"{NEWEST} is damaged"
        plain = bool(told) and told.isprintable() and not {"", ".", ".."} & {*told.split("/")}
        return "" if plain and self.store.exists(f"{told}/{DONE}") else f"{NEWEST} names no checkpoint that is done"

    def _hinted(self) -> set[int]:
        """The newest, where a listing may not have it yet."""
        try:
            match = _STEP.match(self.store.read(NEWEST, 1 << 10).decode())
        except (FileNotFoundError, NotPlainFileError, UnicodeDecodeError):
            return set()
        if match is None or not self.store.exists(f"{match[0]}/{DONE}"):
            return set()
        return {int(match[1])}

    def _unreadable(self, error: OSError) -> RunError:
        return RunError(
            f"the checkpoints cannot be read: {reason(error)}",
            code="TRN531",
            got=self.store.url,
            remedy="check the place and the permissions; nothing was begun anew",
        )


class CheckpointInProgress:
    """A checkpoint of all ranks that one process writes, file by file."""

    def __init__(self, kept: Checkpoints, step: int) -> None:
        self._kept, self._step, self._files = kept, step, dict[int, dict[str, Any]]()
        kept.store.delete(f"{name_of(step)}/{DONE}")
        kept.store.write(f"{name_of(step)}/{BEGUN}", b"")

    def put(self, rank: int, file: str, content: Content) -> None:
        """Write a file of a rank. Raises OSError."""
        self._kept.store.write(f"{name_of(self._step)}/{folder_of(rank)}/{file}", *pieces(content))
        self._files.setdefault(rank, {})[file] = described(content)

    def rank_done(self, rank: int, about: Mapping[str, Any]) -> None:
        """Write down what a rank's files are; see `Checkpoints.save`. Raises OSError."""
        self._kept._write_record(self._step, rank, self._files.get(rank, {}), about)

    def finish(self) -> None:
        """Mark it done. Others stay. Raises OSError."""
        self._kept.finish(self._step)
