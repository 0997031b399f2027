# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as files in a store: begun, written by every rank, done; several kept; the newest whole one found.

    step_00000200/checkpoint           begun
    step_00000200/rank_00000/<file>    what rank 0 keeps, as it likes
    step_00000200/rank_00000.json      sizes and SHA-256 of its files, written after them
    step_00000200/.metadata            where each tensor lies, for torch.distributed.checkpoint
    step_00000200/done                 all ranks have written theirs
    newest                             the name of the newest that is done, for stores whose listings lag

The markers are those of the vendor's library. A checkpoint without `done` is never read; one that is done is read
only when every file has its size and digest, and otherwise the one before it is taken, which is said. Where there are
checkpoints and none can be read it is an error: nothing begins anew by mistake.

Each rank reads and checks its own files once, and the ranks agree on the newest checkpoint that all of them found
whole: `Agreement` says how they talk. Without one, each rank checks the files of all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trnlab.errors import RunError
from trnlab.files import json_of
from trnlab.storage.store import Store
from trnlab.storage.trouble import reason

BEGUN, DONE, NEWEST = "checkpoint", "done", "newest"
METADATA = ".metadata"
Content = bytes | memoryview | Sequence[bytes | memoryview]  # in one piece, or in several
_STEP = re.compile(r"^step_(\d{8,})$")
_MOST_RANKS = 1 << 20
_SHOWN = 8  # problems after which no more are looked for
PATIENCE_S, POLL_S = 600.0, 0.1
GRACE_S = 10.0  # for the others' parts, once the job has failed


@dataclass(frozen=True)
class Checkpoint:
    """One of a store. done: whether all ranks wrote theirs. size: bytes of its files; created: seconds since 1970."""

    step: int
    done: bool
    size: int
    created: float

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
    told: list[str] = field(default_factory=list)  # lines to say
    agreement: Agreement | None = None
    index: Callable[[list[dict[str, Any]]], Mapping[str, bytes]] | None = None
    failed: threading.Event = field(default_factory=threading.Event)  # set: the job ends, other ranks may be gone

    # -- writing ------------------------------------------------------------------------------------------------
    def save(self, step: int, files: Mapping[str, Content], about: Mapping[str, Any] | None = None) -> None:
        """Write the files of this rank; rank 0 also waits for the others, and marks it done. about: what is to be
        known of the files without reading them, as JSON has it. Raises RunError (TRN531)."""
        name = name_of(step)
        try:
            if self.rank == 0:
                self.store.delete(f"{name}/{DONE}")
                self.store.write(f"{name}/{BEGUN}", b"")
            for file, content in files.items():
                self.store.write(f"{name}/{folder_of(self.rank)}/{file}", *pieces(content))
            digests = {file: _described(content) for file, content in files.items()}
            record = {"step": step, "ranks": self.ranks, "files": digests, "about": about or {}}
            self.store.write(f"{name}/{folder_of(self.rank)}.json", json.dumps(record).encode())
            if self.rank == 0:
                self._finish(step)
        except OSError as error:
            raise RunError(
                f"the checkpoint of step {step} cannot be written: {reason(error)}", code="TRN531",
                got=self.store.url, remedy="free some space, or check the permissions; the ones before it are kept",
            ) from error  # fmt: skip

    def _finish(self, step: int) -> None:
        """Mark it done when all ranks have written, and take old ones away."""
        name, started = name_of(step), time.monotonic()
        for rank in range(self.ranks):
            while not self.store.exists(f"{name}/{folder_of(rank)}.json"):
                waited = time.monotonic() - started
                if waited > PATIENCE_S or (self.failed.is_set() and waited > GRACE_S):
                    raise TimeoutError(f"rank {rank} has not written its part")
                time.sleep(POLL_S)
        self.finish(step)
        self._prune(step)

    def finish(self, step: int) -> None:
        """Mark one done of which every rank's files are there. Raises OSError."""
        name = name_of(step)
        files = {} if self.index is None else self.index([self.record(step, r)["about"] for r in range(self.ranks)])
        for file, content in files.items():
            self.store.write(f"{name}/{file}", content)
        done = {"step": step, "ranks": self.ranks, "files": {f: _described(c) for f, c in files.items()}}
        self.store.write(f"{name}/{DONE}", json.dumps(done).encode())
        self.store.write(NEWEST, name.encode())

    def _prune(self, newest: int) -> None:
        """Keep the newest, and take away the others and what was never finished, `done` first."""
        found = self.all()
        kept = [c.step for c in found if c.done and c.step <= newest][: self.keep]
        for checkpoint in found:
            if checkpoint.step not in kept and checkpoint.step <= newest:
                self.remove(checkpoint.step)

    def remove(self, step: int) -> None:
        """Take a checkpoint away, so that one who is stopped half way leaves none that is done. Raises OSError."""
        name = name_of(step)
        self.store.delete(f"{name}/{DONE}")
        self.store.delete(f"{name}/{METADATA}", *(item.name for item in self.store.items(f"{name}/")))

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
                return step, files
            self.told.append(
                f"the checkpoint of step {step} is not whole, the one before it is taken: "
                f"{problem or 'another rank says so'}"
            )
        if steps:
            raise RunError(
                "no checkpoint is whole", code="TRN532", got=", ".join(map(str, steps)), limit=self.store.url,
                remedy="see `trnlab checkpoint verify`; to begin anew, name another place or remove these",
            )  # fmt: skip
        return None

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
        told = self.agreement.first(",".join(map(str, steps)))
        if told == "unreadable":
            raise self._unreadable(OSError(errno.EIO, "rank 0 cannot read them", self.store.url))
        return [int(step) for step in told.split(",") if step]

    def _tried(self, step: int, other_ranks: bool) -> tuple[str, dict[str, bytes] | None]:
        """What is wrong with a checkpoint, and the files of this rank where nothing is. Raises RunError: TRN531 where
        the store cannot be read, TRN530 for another number of ranks."""
        try:
            if self.agreement is None and self.ranks > 1:
                problems = self.problems(step)  # nobody else can say what became of the others' files
            else:
                problems = self._of_all(step) if self.rank == 0 else []
            return (problems[0], None) if problems else ("", self.load(step, other_ranks))
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

    def load(self, step: int, other_ranks: bool = False) -> dict[str, bytes]:
        """The files of this rank, checked. Raises OSError, and RunError: TRN530 for another number of ranks, unless
        `other_ranks`; TRN532 for what is not whole."""
        ranks = self.ranks_of(step)
        if ranks != self.ranks and not other_ranks:
            raise RunError(
                "the checkpoint is of another number of ranks", code="TRN530", limit=ranks, got=self.ranks,
                remedy="start as many ranks as wrote it; with trnlab.checkpoint in the script any number will do",
            )  # fmt: skip
        return self.files(step, self.rank % ranks)

    def files(self, step: int, rank: int, *names: str) -> dict[str, bytes]:
        """The files that a rank wrote, or those of these names, checked. Raises as `load`."""
        folder, files = f"{name_of(step)}/{folder_of(rank)}", {}
        for file, about in self.record(step, rank)["files"].items():
            if not names or file in names:
                files[file] = self._checked(f"{folder}/{file}", about)
        return files

    def ranks_of(self, step: int) -> int:
        """How many ranks wrote a finished checkpoint. Raises FileNotFoundError, OSError, RunError (TRN532)."""
        return int(self._done(step)["ranks"])

    def problems(self, step: int) -> list[str]:
        """What is not as it was written, of all ranks; nothing for a whole checkpoint. Raises OSError."""
        found = self._of_all(step)
        if found:
            return found
        ranks = self.ranks_of(step)
        for rank in range(ranks):
            try:
                if self.record(step, rank)["ranks"] != ranks:
                    found.append(f"{folder_of(rank)} is of another number of ranks")
                self.files(step, rank)
            except FileNotFoundError as error:
                found.append(f"something of {folder_of(rank)} is missing ({error})")
            except RunError as error:
                found.append(error.what)
            if len(found) >= _SHOWN:
                break
        return found

    def _of_all(self, step: int) -> list[str]:
        """What is wrong with what belongs to no rank."""
        try:
            done = self._done(step)
        except FileNotFoundError:
            return ["it was never finished"]
        except RunError as error:
            return [error.what]
        for file, about in done.get("files", {}).items():
            try:
                self._checked(f"{name_of(step)}/{file}", about)
            except FileNotFoundError:
                return [f"{name_of(step)}/{file} is missing"]
            except RunError as error:
                return [error.what]
        return []

    def _done(self, step: int) -> dict[str, Any]:
        name = f"{name_of(step)}/{DONE}"
        try:
            found = json_of(self.store.read(name))
            if _is_count(found["ranks"]) and _are_files(found.get("files", {})):
                return dict(found)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise RunError(f"{name} is damaged", code="TRN532", remedy="take another checkpoint")

    def _checked(self, name: str, about: Mapping[str, Any]) -> bytes:
        content = self.store.read(name)
        if len(content) != about["bytes"] or _described(content)["sha256"] != about["sha256"]:
            raise RunError(f"{name} is not what was written", code="TRN532", remedy="take another checkpoint")
        return content

    def record(self, step: int, rank: int) -> dict[str, Any]:
        """What a rank wrote down of its files. Raises OSError, RunError (TRN532)."""
        name = f"{name_of(step)}/{folder_of(rank)}.json"
        try:
            record = json_of(self.store.read(name))
            if record["step"] == step and _is_count(record["ranks"]) and _are_files(record["files"]):
                return dict(record)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise RunError(f"{name} is damaged", code="TRN532", remedy="take another checkpoint")

    def _hinted(self) -> set[int]:
        """The newest, where a listing may not have it yet."""
        try:
            match = _STEP.match(self.store.read(NEWEST).decode())
        except (FileNotFoundError, UnicodeDecodeError):
            return set()
        if match is None or not self.store.exists(f"{match[0]}/{DONE}"):
            return set()
        return {int(match[1])}

    def _unreadable(self, error: OSError) -> RunError:
        return RunError(
            f"the checkpoints cannot be read: {reason(error)}", code="TRN531", got=self.store.url,
            remedy="check the place and the permissions; nothing was begun anew",
        )  # fmt: skip


class Making:
    """A checkpoint of all ranks that one process writes, file by file."""

    def __init__(self, kept: Checkpoints, step: int) -> None:
        self._kept, self._step, self._files = kept, step, dict[int, dict[str, Any]]()
        kept.store.delete(f"{name_of(step)}/{DONE}")
        kept.store.write(f"{name_of(step)}/{BEGUN}", b"")

    def put(self, rank: int, file: str, content: Content) -> None:
        """Write a file of a rank. Raises OSError."""
        self._kept.store.write(f"{name_of(self._step)}/{folder_of(rank)}/{file}", *pieces(content))
        self._files.setdefault(rank, {})[file] = _described(content)

    def rank_done(self, rank: int, about: Mapping[str, Any]) -> None:
        """Write down what a rank's files are; see `Checkpoints.save`. Raises OSError."""
        files = self._files.get(rank, {})
        record = {"step": self._step, "ranks": self._kept.ranks, "files": files, "about": about}
        self._kept.store.write(f"{name_of(self._step)}/{folder_of(rank)}.json", json.dumps(record).encode())

    def finish(self) -> None:
        """Mark it done. Others stay. Raises OSError."""
        self._kept.finish(self._step)


def _is_count(ranks: object) -> bool:
    return type(ranks) is int and 0 < ranks <= _MOST_RANKS


def _are_files(files: object) -> bool:
    """Whether it lists files of the checkpoint's own folder, with the size and digest of each."""
    return isinstance(files, dict) and all(
        isinstance(about, dict) and {"bytes", "sha256"} <= set(about) and not {"..", ""} & set(name.split("/"))
        for name, about in files.items()
    )


def name_of(step: int) -> str:
    """The folder of a step."""
    return f"step_{step:08d}"


def folder_of(rank: int) -> str:
    """The folder of a rank, within that of a step."""
    return f"rank_{rank:05d}"


def pieces(content: Content) -> Sequence[bytes | memoryview]:
    """A file's content as the pieces that it is of."""
    return [content] if isinstance(content, bytes | memoryview) else content


def _described(content: Content) -> dict[str, Any]:
    """Bytes and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    for part in pieces(content):
        digest.update(part)
        size += len(part)
    return {"bytes": size, "sha256": digest.hexdigest()}
