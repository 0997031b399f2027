# SPDX-License-Identifier: Apache-2.0
"""The compile cache of a process in a view: the process outside of it has the cache, and reads and writes it.

What is written comes from a process that ran a script. It is taken only under the name of a digest, where there is
nothing yet, and when it reads as an entry of that name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from trnlab.errors import CacheError
from trnlab.runtime.cache import serialize
from trnlab.runtime.cache.executables import Cache
from trnlab.storage import Item
from trnlab.storage.store import Store, StoreUsage
from trnlab.view.line import ask

_KEY = re.compile(r"[0-9a-f]{16,128}")


class _Nowhere:
    """A store with nothing in it, which keeps nothing."""

    def __init__(self, url: str) -> None:
        self.url, self.shared, self.usage = url, False, StoreUsage()

    def read(self, name: str, first: int | None = None, most: int | None = None) -> bytes:
        raise FileNotFoundError(name)

    def read_at(self, name: str, start: int, size: int) -> bytes:
        raise FileNotFoundError(name)

    def write(self, name: str, *parts: bytes | memoryview) -> None:
        pass

    def create(self, name: str, *parts: bytes | memoryview) -> bool:
        return False

    def exists(self, name: str) -> bool:
        return False

    def items(self, prefix: str = "") -> list[Item]:
        return []

    def delete(self, *names: str) -> None:
        pass

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def remove_folder(self, prefix: str) -> None:
        pass

    def note_use(self, name: str) -> None:
        pass

    def leftovers(self, prefix: str = "", *, older_than_s: float = 0.0) -> list[str]:
        return []


class LentCache(Cache):
    """As the cache outside; see the module."""

    def __init__(self, place: str) -> None:
        store: Store = _Nowhere(place)
        super().__init__(store)
        self._key = None  # the process outside has it

    def has(self, key: str) -> bool:
        """See `Cache`, as the next ones."""
        return bool(self._ask("has", key))

    def content(self, key: str) -> bytes | None:
        """The bytes of an entry, not checked, or None."""
        found = self._ask("content", key)
        return bytes(found) if found is not None else None

    def put_content(self, key: str, *parts: bytes | memoryview) -> bool:
        """Store what `serialize.dump` made."""
        content = b"".join(parts)
        stored = bool(self._ask("put", key, content, key in self._replaceable))
        if stored:
            self._replaceable.discard(key)
            self.metrics.stored += 1
            self.sizes[key] = len(content)
        return stored

    @contextlib.contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Hold the right to build `key`."""
        self._ask("hold", key)
        try:
            yield
        finally:
            self._ask("release", key)

    def _note_use(self, key: str) -> None:
        self._ask("used", key)

    def _ask(self, *words: Any) -> Any:
        try:
            return ask("cache", *words)
        except OSError:  # another process than the one that follows the script, or nobody outside
            return None


class Lender:
    """The other side of it, outside of the view."""

    def __init__(self, cache: Cache | None) -> None:
        self._cache, self._held = cache, dict[str, ExitStack]()

    def answer(self, what: str, key: str, content: bytes = b"", replace: bool = False) -> Any:
        """Do what a `LentCache` asks for."""
        cache = self._cache
        if cache is None or not isinstance(key, str) or not _KEY.fullmatch(key):
            return None
        if what == "has":
            return cache.has(key)
        if what == "content":
            return self._content(cache, key)
        if what == "put":
            return self._put(cache, key, bytes(content), replace)
        if what == "used":
            cache._note_use(key)
        elif what == "hold" and key not in self._held:
            self._held[key] = ExitStack()
            self._held[key].enter_context(cache.building(key))
        elif what == "release" and key in self._held:
            self._held.pop(key).close()
        return None

    def close(self) -> None:
        """Let go of all that the other side held."""
        for held in self._held.values():
            held.close()
        self._held.clear()

    def _content(self, cache: Cache, key: str) -> bytes | None:
        for each in (cache, *getattr(cache, "others", ())):
            found = Cache.content(each, key)
            if found is not None:
                if each is not cache:
                    cache.put_content(key, found)
                return found
        return None

    def _put(self, cache: Cache, key: str, content: bytes, replace: bool) -> bool:
        try:
            if serialize.loads(content, key, filled=False).metadata.get("key") != key:
                return False
            if replace and self._damaged(cache, key):
                cache.overwrite(key, content)
                return True
        except CacheError:
            return False
        return cache.put_content(key, content)

    def _damaged(self, cache: Cache, key: str) -> bool:
        found = Cache.content(cache, key)
        try:
            return found is None or serialize.loads(found, key, filled=False).metadata.get("key") != key
        except CacheError:
            return True
