# SPDX-License-Identifier: Apache-2.0
"""A finished checkpoint, as it is read: nothing of a file is given out before all of it has its size and digest.

`done` holds its own digest and those of what belongs to no rank and of each rank's record, which has those of the
rank's files: no bit of any of them changes unnoticed. In what older releases wrote, `done` and the records have none
(`covered`); their files and `.metadata` have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from trnlab.errors import RunError
from trnlab.files import json_of
from trnlab.storage.plain_files import NotPlainFileError
from trnlab.storage.seals import described, is_as_described, unsealed
from trnlab.storage.store import Store

BEGUN, DONE = "checkpoint", "done"
METADATA = ".metadata"
OLDER = "written before records had a digest: damage to them may stay unnoticed"
_RECORD = re.compile(r"rank_\d{5,}\.json")
_OLDER_FIELDS = ("step", "ranks", "files")
_MOST_RANKS = 1 << 20
_MOST_BYTES = 1 << 28  # of `done`, and of a rank's record (assumed)
_SHOWN = 8  # problems after which no more are looked for
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError)


def name_of(step: int) -> str:
    """The folder of a step."""
    return f"step_{step:08d}"


def folder_of(rank: int) -> str:
    """The folder of a rank, within that of a step."""
    return f"rank_{rank:05d}"


def record_of(rank: int) -> str:
    """What a rank wrote down of its files, within the folder of a step."""
    return f"{folder_of(rank)}.json"


def read_record(store: Store, step: int, rank: int, within: str | None = None) -> tuple[dict[str, Any], bytes]:
    """A rank's record and its bytes, not checked. Raises OSError, RunError (TRN532) for what is no record."""
    name = f"{name_of(step)}/{record_of(rank)}" if within is None else within + record_of(rank)
    content = _read(store, name)
    try:
        record = json_of(content)
        if record["step"] == step and _is_count(record["ranks"]) and _are_files(record["files"]):
            return dict(record), content
    except _MALFORMED:
        pass
    raise _damaged(name)


class FinishedCheckpoint:
    """The checkpoint below `within`, a prefix of names in `store`. step: that it is of, or None for any.

    ranks: how many wrote it. covered: whether every file of it has a digest.
    Raises FileNotFoundError where none is done, OSError, RunError (TRN532) where its `done` is damaged.
    """

    def __init__(self, store: Store, within: str, step: int | None = None) -> None:
        self.store, self._within = store, within
        self._sound: set[str] = set()
        try:
            done, self.covered = unsealed(_read(store, within + DONE), _OLDER_FIELDS)
            known = done.get("files", {})
            of_this = type(done["step"]) is int and step in (None, done["step"])
            if not of_this or not _is_count(done["ranks"]) or not _are_files(known):
                raise ValueError("it is of another")
        except _MALFORMED:
            raise _damaged(within + DONE) from None
        self.step, self.ranks = int(done["step"]), int(done["ranks"])
        self._known: dict[str, Mapping[str, Any]] = known

    def record(self, rank: int) -> dict[str, Any]:
        """What a rank wrote down of its files. Raises OSError, RunError (TRN532)."""
        record, content = read_record(self.store, self.step, rank, self._within)
        known = self._known.get(record_of(rank))
        differs = known is not None and not _is(content, known)
        if differs or (known is None and self.covered):
            raise _changed(self._within + record_of(rank))
        if record["ranks"] != self.ranks:
            raise RunError(
                f"{self._within}{folder_of(rank)} is of another number of ranks",
                code="TRN532",
                limit=self.ranks,
                got=record["ranks"],
                remedy="take another checkpoint",
            )
        return record

    def files(self, rank: int, *names: str) -> dict[str, bytes]:
        """The files that a rank wrote, or those of these names, checked. Raises OSError, RunError (TRN532)."""
        found = {}
        for file, about in self.record(rank)["files"].items():
            if not names or file in names:
                name = f"{self._within}{folder_of(rank)}/{file}"
                content = _read(self.store, name, about["bytes"])
                if not _is(content, about):
                    raise _changed(name)
                found[file] = content
        return found

    def part(self, rank: int, file: str, about: Mapping[str, Any], start: int, size: int) -> bytes:
        """Bytes of a file that is as `about` of a rank's record says: all is checked once. Raises as `files`."""
        name = f"{self._within}{folder_of(rank)}/{file}"
        self._check(name, about)
        return self.store.read_at(name, start, size)

    def problems(self) -> list[str]:
        """What is not as it was written, of all ranks; nothing for a whole checkpoint. Raises OSError."""
        return self.of_all() or self.of_ranks(range(self.ranks))

    def of_all(self) -> list[str]:
        """What is wrong with what belongs to no rank. Raises OSError."""
        names = [self._within + name for name in self._known if not _RECORD.fullmatch(name)]
        return _told(
            (lambda n=name: self._check(n, self._known[n.removeprefix(self._within)]), name) for name in names
        )

    def of_ranks(self, ranks: Iterable[int]) -> list[str]:
        """What is wrong with what these ranks wrote. Raises OSError."""
        return _told((lambda r=rank: self._check_rank(r), folder_of(rank)) for rank in ranks)

    def require_whole(self) -> None:
        """Raises RunError (TRN532) unless everything is as it was written; OSError."""
        problems = self.problems()
        if problems:
            raise RunError(problems[0], code="TRN532", got=self.store.url, remedy="take another checkpoint")

    def _check_rank(self, rank: int) -> None:
        for file, about in self.record(rank)["files"].items():
            self._check(f"{self._within}{folder_of(rank)}/{file}", about)

    def _check(self, name: str, about: Mapping[str, Any]) -> None:
        if name not in self._sound and not is_as_described(self.store, name, about):
            raise _changed(name)
        self._sound.add(name)


def _told(checks: Iterable[tuple[Any, str]]) -> list[str]:
    """What these checks find wrong, each in a line; no more than are read."""
    found: list[str] = []
    for check, what in checks:
        try:
            check()
        except FileNotFoundError as error:
            found.append(f"something of {what} is missing ({error})")
        except RunError as error:
            found.append(error.what)
        if len(found) >= _SHOWN:
            break
    return found


def _is(content: bytes, about: Mapping[str, Any]) -> bool:
    return described(content) == {"bytes": about["bytes"], "sha256": about["sha256"]}


def _read(store: Store, name: str, most: int = _MOST_BYTES) -> bytes:
    """A file of at most so many bytes. Raises OSError, RunError (TRN532) for what is larger, or no file."""
    try:
        return store.read(name, most=most)
    except NotPlainFileError:
        raise _changed(name) from None


def _changed(name: str) -> RunError:
    return RunError(f"{name} is not what was written", code="TRN532", remedy="take another checkpoint")


def _damaged(name: str) -> RunError:
    return RunError(f"{name} is damaged", code="TRN532", remedy="take another checkpoint")


def _is_count(ranks: object) -> bool:
    return type(ranks) is int and 0 < ranks <= _MOST_RANKS


def _are_files(files: object) -> bool:
    """Whether it lists files of the checkpoint's own folder, with the size and digest of each."""
    return isinstance(files, dict) and all(
        isinstance(about, dict)
        and type(about.get("bytes")) is int
        and about["bytes"] >= 0
        and isinstance(about.get("sha256"), str)
        and not {"..", ".", ""} & set(name.split("/"))
        for name, about in files.items()
    )
