# SPDX-License-Identifier: Apache-2.0
"""A store: named objects that are written whole or not at all, in a folder or behind fsspec.

Names are relative, with slashes. What a store promises, and what everything above is built on:

- `write` and `create`: a reader sees the object as it was or as it is now, never a part, whenever the writer dies;
- `create` makes an object only where there is none; of many that try at once one succeeds;
- `items` may be stale, and nobody takes what it does not name for absent.

Trouble comes as OSError: FileNotFoundError for what is not there, the others with `errno` as files have them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Protocol


@dataclass(frozen=True)
class Item:
    """An object of a store: its name, bytes, and when it was written (seconds since 1970, by the store's clock)."""

    name: str
    size: int
    modified: float


@dataclass
class StoreUsage:
    """What was asked of a store by this process: requests, those that were repeated, bytes, seconds of waiting."""

    requests: int = 0
    retries: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    waited_s: float = 0.0

    def record(self) -> dict[str, float]:
        """The figures by name."""
        return asdict(self)


class Store(Protocol):
    """Named objects; see the module. `url` names it; `shared` says whether other machines may use it, too."""

    url: str
    shared: bool
    usage: StoreUsage

    def read(self, name: str, first: int | None = None, most: int | None = None) -> bytes:
        """The object, or its first bytes. most: bytes that it can have. Raises OSError."""
        ...

    def read_at(self, name: str, start: int, size: int) -> bytes:
        """So many bytes of an object from `start` on, fewer where it ends before. Raises OSError."""
        ...

    def write(self, name: str, *parts: bytes | memoryview) -> None:
        """Put an object in the place of what has this name. Raises OSError."""
        ...

    def create(self, name: str, *parts: bytes | memoryview) -> bool:
        """As `write`, where nothing has this name; false where something does. Raises OSError."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name. Raises OSError."""
        ...

    def items(self, prefix: str = "") -> list[Item]:
        """The objects whose name begins with `prefix`, a folder with its slash; none where there is no such folder.
        Raises OSError."""
        ...

    def delete(self, *names: str) -> None:
        """Remove objects; those that are not there do not matter. Raises OSError."""
        ...

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """A block whose requests, all together, are tried again for no longer than this."""
        ...

    def remove_folder(self, prefix: str) -> None:
        """Remove what is left below a prefix whose objects were deleted: empty folders, files of killed writers.
        Raises OSError."""
        ...

    def note_use(self, name: str) -> None:
        """Remember that `name` was used now. Never raises: it is only for what may be removed first."""
        ...

    def leftovers(self, prefix: str = "", *, older_than_s: float = 0.0) -> list[str]:
        """Names of what killed writers left behind, which nobody reads."""
        ...
