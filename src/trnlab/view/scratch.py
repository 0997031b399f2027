# SPDX-License-Identifier: Apache-2.0
"""A layer over the file system in plain Python, for systems that offer none: Python's functions on files write into a
scratch folder, and read from it what was written there before. An audit hook refuses what goes past them.

`files/` holds what was written, under its path; `gone/` the paths of what was removed, in files named by digests.
Other processes that the script makes share both.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import importlib
import io
import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trnlab.view.changes import FileChange
from trnlab.view.file_calls import (
    ATTRIBUTES,
    CHANGING,
    FREE,
    LINKS,
    NATIVE,
    READING,
    WITH_FOLDER,
    as_function,
    no_other_database,
    opens_to_write,
)
from trnlab.view.layered_entries import Entries, LayeredEntry
from trnlab.view.listening import EventWriter

REFUSED = "TRN582"


def deleted(root: str) -> Iterator[FileChange]:
    """What was removed of what is there."""
    gone = {mark.read_text(errors="surrogateescape") for mark in Path(root, "gone").glob("*")}
    gone = {path for path in gone if not os.path.lexists(f"{root}/files{path}")}
    for path in gone:
        if os.path.lexists(path) and not gone.intersection(map(str, Path(path).parents)):
            yield FileChange("deleted", path, os.lstat(path).st_size)


class Scratch:
    """The layer of this process and those that it makes."""

    def __init__(self, root: str, listener: EventWriter) -> None:
        self._root, self._listener = os.path.realpath(root), listener
        self._files, self._gone = f"{self._root}/files", f"{self._root}/gone"
        self._real: dict[str, Any] = {}
        for folder in (self._files, self._gone):
            os.makedirs(folder, exist_ok=True)

    # -- where things are ------------------------------------------------------------------------------------------
    def to_write(self, path: str) -> str:
        """See `line.place_to_write`."""
        return self.for_writing(path, create=True, empty=True)

    def path_of(self, path: Any, follow: bool = True) -> str:
        """The path that a name means, with no link in it but at most the last."""
        parts = os.path.abspath(os.fsdecode(path)).split("/")[1:]
        found, links = "", 0
        while parts:
            name = parts.pop(0)
            here = f"{found}/{name}"
            target = self._link(here) if parts or follow else None
            if target is None or here.startswith(self._root):
                found = here
                continue
            links += 1
            if links > LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(path))
            parts = os.path.normpath(os.path.join(found or "/", target)).split("/")[1:] + parts
            found = ""
        return found or "/"

    def _link(self, path: str) -> str | None:
        for place in (f"{self._files}{path}", path):
            try:
                return os.fsdecode(self._real["readlink"](place))
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return None
            if place == path or self._is_gone(path):
                return None
        return None

    def _mark(self, path: str) -> str:
        return f"{self._gone}/{hashlib.sha256(os.fsencode(path)).hexdigest()}"

    def _is_gone(self, path: str) -> bool:
        while path not in ("", "/"):
            if self._there(self._mark(path)):
                return True
            path = path.rpartition("/")[0]
        return False

    def _there(self, place: str) -> bool:
        try:
            self._real["lstat"](place)
        except (OSError, ValueError):
            return False
        return True

    def _inside(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + "/")

    def for_reading(self, path: Any, follow: bool = True) -> str:
        """Where a file is. Raises FileNotFoundError for what was removed."""
        found = self.path_of(path, follow)
        if self._inside(found):
            return found
        place = f"{self._files}{found}"
        if self._there(place):
            if stat.S_ISDIR(self._real["lstat"](place).st_mode) and self._is_real(found):
                return found
            return place
        if self._is_gone(found):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        return found

    def _is_real(self, found: str) -> bool:
        return not self._is_gone(found) and self._there(found)

    def for_writing(self, path: Any, create: bool, empty: bool, follow: bool = True, new: bool = False) -> str:
        """Where a file is to be written, with what was in it unless it is to be emptied. Raises OSError."""
        found = self.path_of(path, follow)
        if self._inside(found) or found in FREE or found.startswith(("/proc/self/fd/", "/dev/fd/", "/dev/pts/")):
            return found
        place = f"{self._files}{found}"
        there = self._there(place) or self._is_real(found)
        if new and there:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))
        if not there and not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        if not self._there(place):
            self._parents(found, path)
            if there:
                self._copy(found, place, empty)
        return place

    def _parents(self, found: str, path: Any) -> None:
        """Make the folders of a file in the layer. Raises FileNotFoundError where they are not in the view."""
        folder = found.rpartition("/")[0]
        place = f"{self._files}{folder}"
        if self._there(place) or not folder:
            return
        if not self._is_real(folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        if not stat.S_ISDIR(self._real["stat"](folder).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(path))
        self._parents(folder, path)
        self._real["mkdir"](place)
        self._like(folder, place)

    def _like(self, source: str, place: str) -> None:
        state = self._real["stat"](source, follow_symlinks=False)
        if not stat.S_ISLNK(state.st_mode):
            self._real["chmod"](place, stat.S_IMODE(state.st_mode) | 0o600)
            self._real["utime"](place, ns=(state.st_atime_ns, state.st_mtime_ns))

    def _copy(self, found: str, place: str, empty: bool) -> None:
        state = self._real["lstat"](found)
        if stat.S_ISLNK(state.st_mode):
            self._real["symlink"](self._real["readlink"](found), place)
            return
        if stat.S_ISDIR(state.st_mode):
            self._real["mkdir"](place)
        elif not os.access(found, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), found)
        else:
            with self._real["open"](place, "wb") as into:
                if not empty:
                    with self._real["open"](found, "rb") as source:
                        shutil.copyfileobj(source, into, 1 << 20)
        if not empty or stat.S_ISDIR(state.st_mode):
            self._like(found, place)

    def _forget(self, found: str) -> None:
        """What is at a path is gone."""
        with self._real["open"](self._mark(found), "w", errors="surrogateescape") as mark:
            mark.write(found)

    def names(self, path: Any) -> list[str]:
        """What is in a folder. Raises OSError."""
        found = self.path_of(path)
        place = f"{self._files}{found}"
        merged = set(self._real["listdir"](place)) if self._there(place) else set()
        if self._is_real(found):
            for name in self._real["listdir"](found):
                if not self._there(self._mark(f"{found.rstrip('/')}/{name}")):
                    merged.add(name)
        elif not self._there(place):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        return sorted(merged)

    # -- the functions --------------------------------------------------------------------------------------------
    def install(self) -> None:
        """Put the layer under Python's functions, wherever they are known, and the guard behind them."""
        self._real = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
        self._real["os.open"], self._real["open"] = os.open, builtins.open
        made = self._functions()
        swapped: dict[int, Any] = {id(builtins.open): self._open}
        for name, function in made.items():
            swapped[id(getattr(os, name))] = function
            function.__name__ = name
            setattr(os, name, function)
        builtins.open = io.open = self._open  # type: ignore[assignment]
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            if getattr(module, "__name__", "") in ("posix", "_io", "importlib._bootstrap_external", __name__):
                continue
            for name, value in list(names.items()):
                if id(value) in swapped and value is not swapped[id(value)] and callable(value):
                    names[name] = swapped[id(value)]
        shutil._use_fd_functions = False  # type: ignore[attr-defined]
        self._sockets()
        self._databases()
        self._listener.more = self._guard

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int):
            return self._real["open"](file, mode, *args, **kwargs)
        if not set("wax+") & set(mode):
            return self._real["open"](self.for_reading(file), mode, *args, **kwargs)
        place = self.for_writing(file, create="r" not in mode, empty="w" in mode, new="x" in mode)
        opened = self._real["open"](place, mode, *args, **kwargs)
        raw = getattr(opened, "buffer", opened)
        raw = getattr(raw, "raw", raw)
        raw.name = os.fspath(file)
        return opened

    def _functions(self) -> dict[str, Any]:
        """What stands for functions of `os`, by name."""
        found = {name: self._reads(name) for name in READING if name in self._real}
        found |= {name: self._changes(name) for name in ATTRIBUTES if name in self._real}
        found |= {
            "open": self._os_open,
            "lstat": self._lstat,
            "listdir": self._listdir,
            "scandir": self._scandir,
            "mkdir": self._mkdir,
            "rmdir": self._rmdir,
            "remove": self._remove,
            "unlink": self._remove_too,
            "rename": self._rename,
            "replace": self._replace,
            "link": self._link_to,
            "symlink": self._symlink,
            "mkfifo": self._make("mkfifo"),
            "mknod": self._make("mknod"),
        }
        return {name: as_function(function) for name, function in found.items()}

    def _reads(self, name: str) -> Any:
        real = self._real[name]

        def function(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, int) or kwargs.get("dir_fd") is not None:
                return real(path, *args, **kwargs)
            follow = kwargs.get("follow_symlinks", True) and name != "readlink"
            try:
                place = self.for_reading(path, follow)
            except FileNotFoundError:
                if name == "access":
                    return False
                raise
            result = real(place, *args, **kwargs)
            return os.fsencode(result) if name == "readlink" and isinstance(path, bytes) else result

        return function

    def _changes(self, name: str) -> Any:
        real = self._real[name]

        def function(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, int) or kwargs.get("dir_fd") is not None:
                return real(path, *args, **kwargs)
            follow = kwargs.get("follow_symlinks", True) and name != "lchown"
            return real(self.for_writing(path, create=False, empty=False, follow=follow), *args, **kwargs)

        return function

    def _make(self, name: str) -> Any:
        real = self._real.get(name)

        def function(path: Any, *args: Any, **kwargs: Any) -> Any:
            assert real is not None
            return real(self.for_writing(path, create=True, empty=True, new=True), *args, **kwargs)

        return function

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        real = self._real["os.open"]
        if dir_fd is not None:
            return int(real(path, flags, mode, dir_fd=dir_fd))
        follow = not flags & getattr(os, "O_NOFOLLOW", 0)
        if not opens_to_write(flags):
            return int(real(self.for_reading(path, follow), flags, mode))
        temporary = getattr(os, "O_TMPFILE", 0)
        if temporary and flags & temporary == temporary:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        place = self.for_writing(
            path,
            create=bool(flags & os.O_CREAT),
            empty=bool(flags & os.O_TRUNC),
            follow=follow,
            new=bool(flags & os.O_EXCL and flags & os.O_CREAT),
        )
        return int(real(place, flags, mode))

    def _lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        if dir_fd is not None:
            return self._real["lstat"](path, dir_fd=dir_fd)  # type: ignore[no-any-return]
        return self._real["lstat"](self.for_reading(path, False))  # type: ignore[no-any-return]

    def _listdir(self, path: Any = ".") -> Any:
        if isinstance(path, int):
            return self._real["listdir"](path)
        names = self.names(path)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def _scandir(self, path: Any = ".") -> Any:
        if isinstance(path, int | bytes):
            return self._real["scandir"](path)
        found = self.path_of(path)
        return Entries([LayeredEntry(os.fspath(path), name, f"{found}/{name}") for name in self.names(path)])

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            return
        self._real["mkdir"](self.for_writing(path, create=True, empty=True, new=True), mode)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        found = self.path_of(path, False)
        if self.names(found):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fsdecode(path))
        self._vanish(found)

    def _remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            self._real["remove"](path, dir_fd=dir_fd)
            return
        found = self.path_of(path, False)
        if stat.S_ISDIR(self._lstat(path).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
        self._vanish(found)

    def _remove_too(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove(path, dir_fd=dir_fd)

    def _vanish(self, found: str) -> None:
        """Let what is at a path be there no more, in the layer and below."""
        place = found if self._inside(found) else f"{self._files}{found}"
        if self._there(place):
            kind = self._real["lstat"](place).st_mode
            if stat.S_ISDIR(kind):
                shutil.rmtree(place) if self._inside(found) else self._sweep(place)
            else:
                self._real["unlink"](place)
        if not self._inside(found) and self._there(found):
            self._forget(found)

    def _sweep(self, place: str) -> None:
        for name in self._real["listdir"](place):
            self._sweep(f"{place}/{name}") if os.path.isdir(f"{place}/{name}") else self._real["unlink"](
                f"{place}/{name}"
            )
        self._real["rmdir"](place)

    def _rename(self, source: Any, target: Any, **kwargs: Any) -> None:
        if any(value is not None for value in kwargs.values()):
            self._real["rename"](source, target, **kwargs)
            return
        old, new = self.path_of(source, False), self.path_of(target, False)
        self._listener.note("moved", old, new)
        state = self._lstat(source)
        if old == new:
            return
        if stat.S_ISDIR(state.st_mode):
            self._copy_tree(old, new, target)
        else:
            if self._there(f"{self._files}{new}") or self._is_real(new):
                self._remove(target)
            place = self.for_writing(source, create=False, empty=False, follow=False)
            self._real["rename"](place, self._new_place(new, target))
        self._vanish(old)

    def _new_place(self, new: str, target: Any) -> str:
        if self._inside(new):
            return new
        self._parents(new, target)
        return f"{self._files}{new}"

    def _copy_tree(self, old: str, new: str, target: Any) -> None:
        if self._there(f"{self._files}{new}") or self._is_real(new):
            self._rmdir(target)
        self._real["mkdir"](self._new_place(new, target))
        for name in self.names(old):
            self._rename(f"{old}/{name}", f"{new}/{name}")

    def _replace(self, source: Any, target: Any, **kwargs: Any) -> None:
        self._rename(source, target, **kwargs)

    def _link_to(self, source: Any, target: Any, **kwargs: Any) -> None:
        place = self.for_writing(source, create=False, empty=False, follow=False)
        self._real["link"](place, self.for_writing(target, create=True, empty=True, follow=False, new=True))

    def _symlink(self, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        self._real["symlink"](source, self.for_writing(target, create=True, empty=True, follow=False, new=True))

    # -- what is native -------------------------------------------------------------------------------------------
    def _sockets(self) -> None:
        """Sockets with a path lie in the layer."""
        for name in ("bind", "connect", "connect_ex"):
            real = getattr(socket.socket, name)

            def function(own: Any, address: Any, real: Any = real, name: str = name) -> Any:
                if isinstance(address, str) and address and not address.startswith("\0"):
                    address = (
                        self.for_writing(address, create=True, empty=True)
                        if name == "bind"
                        else self.for_reading(address)
                    )
                return real(own, address)

            setattr(socket.socket, name, function)

    def _databases(self) -> None:
        """Databases of SQLite lie in the layer; a statement that opens another one is refused."""
        try:
            import sqlite3
        except ImportError:
            return
        real = sqlite3.connect

        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            text = os.fsdecode(database)
            if kwargs.get("uri") and text.startswith("file:"):
                path, mark, rest = text.removeprefix("file:").partition("?")
                if path and "mode=memory" not in rest:
                    text = f"file:{self._database(path)}{mark}{rest}"
            elif text not in ("", ":memory:"):
                text = self._database(text)
            made = real(text, *args, **kwargs)
            made.set_authorizer(no_other_database)
            return made

        sqlite3.connect = sqlite3.dbapi2.connect = connect

        for name, endings in (("_gdbm", ("",)), ("_dbm", ("", ".db", ".dir", ".pag"))):
            with contextlib.suppress(ImportError):
                module = importlib.import_module(name)
                module.__dict__["open"] = self._database_of(module.__dict__["open"], endings)

    def _database_of(self, real: Any, endings: tuple[str, ...]) -> Any:
        def function(path: Any, *args: Any) -> Any:
            found = os.fsdecode(path)
            for ending in endings:
                if os.path.exists(found + ending):
                    self.for_writing(found + ending, create=True, empty=False)
            self._parents(self.path_of(found), found)
            return real(self._files + self.path_of(found), *args)

        return function

    def _database(self, path: str) -> str:
        for ending in ("-wal", "-journal"):  # what was not yet part of it
            if os.path.exists(path + ending):
                self.for_writing(path + ending, create=True, empty=False)
        return self.for_writing(path, create=True, empty=False)

    # -- the guard ------------------------------------------------------------------------------------------------
    def _guard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            by_flags = isinstance(flags, int) and opens_to_write(flags)
            writes = set("wax+") & set(mode) if isinstance(mode, str) else by_flags
            if writes and not isinstance(path, int):
                self._allow("write", path)
        elif event in CHANGING:
            for path in args[1:2] if event == "os.symlink" else args[: CHANGING[event]]:
                if isinstance(path, int):
                    path = self._of_handle(path)
                folder = args[-1] if isinstance(args[-1], int) and args[-1] >= 0 and event in WITH_FOLDER else None
                if folder is not None and not os.path.isabs(os.fsdecode(path)):
                    path = os.path.join(self._of_handle(folder), os.fsdecode(path))
                self._allow(event.removeprefix("os."), path)
        elif event == "sqlite3.connect":
            path = os.fsdecode(args[0]).removeprefix("file:").partition("?")[0]
            if path not in ("", ":memory:") and "mode=memory" not in os.fsdecode(args[0]):
                self._allow("database", path)
        elif event == "ctypes.dlsym" and args[1] in NATIVE:
            self._refuse("native", f"{args[1]}() of the C library")

    def _of_handle(self, handle: int) -> str:
        try:
            return os.fsdecode(self._real["readlink"](f"/proc/self/fd/{handle}"))
        except OSError:
            return f"file {handle}"

    def _allow(self, what: str, path: Any) -> None:
        found = os.path.abspath(os.fsdecode(path))
        free = found in FREE or found.startswith(("/proc/self/", "/dev/fd/", "/dev/pts/", "/dev/shm/"))
        if not free and not self._inside(found) and not found.startswith("/memfd:"):
            self._refuse(what, found)

    def _refuse(self, what: str, path: str) -> None:
        self._listener.note("refused", what, path)
        raise PermissionError(
            errno.EACCES, f"{REFUSED}: not changed for a script that is only followed ({what})", path
        )
