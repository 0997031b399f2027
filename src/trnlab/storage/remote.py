# SPDX-License-Identifier: Apache-2.0
"""Object stores and other file systems behind fsspec, S3 before all: `s3://bucket/prefix`, `memory://name`.

Credentials, roles, regions, endpoints and encryption are those of the usual environment (AWS_PROFILE, AWS_ROLE_ARN,
AWS_ENDPOINT_URL, FSSPEC_S3_...). A PUT of S3 is atomic, and `create` is one with If-None-Match. Listings are never
kept. What may pass (503, cut connections, timeouts) is tried again, later and later, with jitter, up to `PATIENCE_S`.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from trnlab.errors import UsageError
from trnlab.storage.plain_files import NotPlainFileError
from trnlab.storage.store import Item, StoreUsage
from trnlab.storage.store_errors import is_passing, translated
from trnlab.units import SECONDS_PER_HOUR

USES = ".used"  # an object beside the used one, written anew at most every USES_EVERY_S
USES_EVERY_S = 6 * SECONDS_PER_HOUR
PATIENCE_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
_S3_OPTIONS = {  # we try again ourselves, and count it
    "config_kwargs": {"retries": {"total_max_attempts": 1}, "connect_timeout": 10, "read_timeout": 60}
}
_Result = TypeVar("_Result")
_made: dict[tuple[int, str, tuple[tuple[str, str], ...]], Any] = {}
_making = threading.Lock()
_in_process = threading.Lock()  # the memory has no exclusive create of its own


class RemoteStore:
    """What lies below a URL. Raises UsageError (TRN520) for a URL of no known kind, or whose package is missing."""

    shared = True

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self.url, self.usage, self.patience_s = url.rstrip("/"), StoreUsage(), patience_s
        self._protocol, _, self._root = self.url.partition("://")
        self._noted: set[str] = set()
        self._until = float("inf")  # of the clock: what is asked after that is asked once
        if not self._root:
            raise UsageError(f"{url!r} names no place in the store", code="TRN520", remedy=f"such as {url}team/cache")
        self._checked_class()

    # -- objects ------------------------------------------------------------------------------------------------
    def read(self, name: str, first: int | None = None, most: int | None = None) -> bytes:
        """See `Store`. Of an object that is too large no more is read than shows that it is."""
        end = first if first is not None else most + 1 if most is not None else None
        options = {} if end is None else {"start": 0, "end": end}
        try:
            content: bytes = self._asked(name, lambda fs, path: fs.cat_file(path, **options))
        except OSError as error:
            if end is None or error.errno != errno.EINVAL:
                raise
            content = b""  # an empty object has no range
        self.usage.read_bytes += len(content)
        if first is None and most is not None and len(content) > most:
            raise NotPlainFileError(Path(name), f"an object of more than {most} bytes")
        return content

    def read_at(self, name: str, start: int, size: int) -> bytes:
        """See `Store`."""
        if size == 0:
            return b""
        content: bytes = self._asked(name, lambda fs, path: fs.cat_file(path, start=start, end=start + size))
        self.usage.read_bytes += len(content)
        return content

    def write(self, name: str, *parts: bytes | memoryview) -> None:
        """See `Store`."""
        content = b"".join(parts)
        self._asked(name, lambda fs, path: fs.pipe_file(path, content))
        self.usage.written_bytes += len(content)

    def create(self, name: str, *parts: bytes | memoryview) -> bool:
        """See `Store`. A create whose answer was lost and that is repeated finds its own object: compare contents."""
        content, repeated = b"".join(parts), False

        def put(fs: Any, path: str) -> bool:
            nonlocal repeated
            try:
                with _in_process if self._protocol == "memory" else nullcontext():
                    fs.pipe_file(path, content, mode="create")
            except FileExistsError:
                return repeated and bytes(fs.cat_file(path)) == content
            except Exception:
                repeated = True
                raise
            return True

        made: bool = self._asked(name, put)
        self.usage.written_bytes += len(content) * made
        return made

    def exists(self, name: str) -> bool:
        """See `Store`."""
        try:
            self._asked(name, lambda fs, path: fs.info(path))
        except FileNotFoundError:
            return False
        return True

    def items(self, prefix: str = "") -> list[Item]:
        """See `Store`."""
        folder = prefix.rpartition("/")[0]
        try:
            found = self._asked(folder, lambda fs, path: fs.find(path, detail=True))
        except FileNotFoundError as error:
            if "bucket" in str(error):
                raise
            return []
        items = [self._item(path, about) for path, about in found.items()]
        return [item for item in items if item.name.startswith(prefix)]

    def delete(self, *names: str) -> None:
        """See `Store`."""
        for name in names:
            try:
                self._asked(name, lambda fs, path: fs.rm_file(path))
            except FileNotFoundError:
                continue

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """See `Store`."""
        before, self._until = self._until, min(self._until, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._until = before

    def remove_folder(self, prefix: str) -> None:
        """See `Store`: there are no folders."""

    def note_use(self, name: str) -> None:
        """See `Store`. One small object for each that is used, at most every `USES_EVERY_S` by all together."""
        if name in self._noted:
            return
        self._noted.add(name)
        try:
            about = self._once(name + USES, lambda fs, path: fs.info(path))
            if time.time() - _modified(about) < USES_EVERY_S:
                return
        except FileNotFoundError:
            pass
        except OSError:
            return
        try:
            self._once(name + USES, lambda fs, path: fs.pipe_file(path, b"."))
        except OSError:
            return  # a store that may only be read

    def leftovers(self, prefix: str = "", *, older_than_s: float = 0.0) -> list[str]:
        """See `Store`: none, an object appears when it is whole."""
        return []

    # -- within -------------------------------------------------------------------------------------------------
    def _asked(self, name: str, request: Callable[[Any, str], _Result]) -> _Result:
        """The answer to a request, which is repeated while the trouble may pass. Raises OSError."""
        started, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                return self._once(name, request)
            except OSError as error:
                last = min(started + self.patience_s, self._until)
                if not is_passing(error) or time.monotonic() + pause > last:
                    raise
            self.usage.retries += 1
            slept = pause * random.uniform(0.5, 1.0)  # so that many hosts do not come back together
            time.sleep(slept)
            self.usage.waited_s += slept
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _once(self, name: str, request: Callable[[Any, str], _Result]) -> _Result:
        self.usage.requests += 1
        path = f"{self._root}/{name}".rstrip("/")
        try:
            return request(self._filesystem(), path)
        except Exception as error:
            raise translated(error, self.url) from error

    def _filesystem(self) -> Any:
        """The file system: one for all stores of a process, for a client of S3 takes a third of a second to make.

        Connections and threads do not survive a fork, and credentials may come from the environment.
        """
        told = sorted((k, v) for k, v in os.environ.items() if k.startswith(("AWS_", "FSSPEC_", "GOOGLE_")))
        wanted = (os.getpid(), self._protocol, tuple(told))
        with _making:
            if wanted not in _made:
                options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
                if self._protocol in ("s3", "s3a"):
                    options |= _S3_OPTIONS
                _made[wanted] = self._checked_class()(**options)
                if self._protocol in ("s3", "s3a"):
                    _made[wanted].retries = 1
            return _made[wanted]

    def _checked_class(self) -> Any:
        try:
            import fsspec

            return fsspec.get_filesystem_class(self._protocol)
        except ValueError as error:
            raise UsageError(
                f"{self.url!r} is of a kind of store that nobody knows here",
                code="TRN520",
                got=self._protocol,
                limit="s3, memory, file, and what fsspec has",
                remedy="a folder, or a URL such as s3://team/cache",
            ) from error
        except ImportError as error:
            package = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}.get(self._protocol, "")
            raise UsageError(
                f"{self.url!r} needs a package that is not installed",
                code="TRN520",
                got=str(error),
                remedy=f"pip install fsspec {package}".rstrip(),
            ) from error

    def _item(self, path: str, about: dict[str, Any]) -> Item:
        name = path.lstrip("/").removeprefix(self._root.lstrip("/")).lstrip("/")
        return Item(name, int(about.get("size") or 0), _modified(about))


def _modified(about: dict[str, Any]) -> float:
    for field in ("LastModified", "modified", "mtime", "last_modified", "created"):
        value = about.get(field)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0
