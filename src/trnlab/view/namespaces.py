# SPDX-License-Identifier: Apache-2.0
"""A view of this machine in namespaces of Linux: every file system is the lower layer of an overlay, whose upper one
is memory that goes with the process.

What no overlay takes as its lower layer is read-only. Devices are out of reach but for the harmless ones, the network
is a loopback, other processes and their sockets cannot be seen.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trnlab.view import calls

_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_SYSTEM = ("/proc", "/sys", "/dev")
_BASE = "/sys"  # over which the memory is mounted while the view is built
_COPIED = 1 << 26  # bytes up to which a file is copied that lies beside a folder in which something is mounted
_DEEP = 3  # levels of folders among which those are looked for that are somebody else's and can be written to


@dataclass(frozen=True)
class OverlayLayer:
    """Where what was written below `point` lies, and where what is below it. divided: folders in it, and other files
    than these copies, belong to other layers."""

    point: str
    upper: str
    lower: str
    divided: bool = False
    copies: tuple[str, ...] = ()


@dataclass
class ViewLayout:
    """The file systems that a view consists of."""

    layers: list[OverlayLayer] = field(default_factory=list)  # what this process can read of them
    read_only: list[str] = field(default_factory=list)  # places of file systems that no overlay takes


def leave(network: bool) -> None:
    """Move this process, which has one thread, into namespaces of its own; those that it starts are in new ones of
    processes, too. Raises OSError where the system does not let it."""
    waits, goes = os.pipe()
    whom = os.getpid()
    helper = os.fork()
    if helper == 0:
        status = 1
        with contextlib.suppress(OSError):
            os.close(goes)
            if os.read(waits, 1):
                _map_all(whom)
                status = 0
        os._exit(status)
    os.close(waits)
    user, group = os.getuid(), os.getgid()
    try:
        calls.unshare(calls.NEWUSER | calls.NEWNS | calls.NEWPID | calls.NEWIPC | (0 if network else calls.NEWNET))
        os.write(goes, b"1")
    finally:
        os.close(goes)
        mapped = os.waitpid(helper, 0)[1] == 0
    if not mapped:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")


def _map_all(process: int) -> None:
    """Have all users and groups that there are here in the namespace of a process; root alone may."""
    for kind in ("uid_map", "gid_map"):
        ranges = [line.split() for line in Path(f"/proc/self/{kind}").read_text().splitlines()]
        _write(f"/proc/{process}/{kind}", "\n".join(f"{start} {start} {count}" for start, _, count in ranges))


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def build(room: int, network: bool, sockets: Sequence[str], places: Sequence[str]) -> ViewLayout:
    """Make the view, and enter it; for the first process of the namespaces. room: bytes of the layer. sockets: of
    other processes, by path. places: where the script is likely to write. Raises OSError."""
    if not network:
        calls.raise_loopback()
    here = os.getcwd()
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in _DEVICES if os.path.exists(f"/dev/{name}")}
    system = os.open("/sys", os.O_PATH)
    calls.mount("none", "/", None, calls.REC | calls.PRIVATE)
    calls.mount("tmpfs", _BASE, "tmpfs", calls.NOSUID | calls.NODEV, f"size={room},mode=700")
    os.setxattr(_BASE, "user.trnlab", b"1")  # raises where an overlay could not mark what it hides
    made = _Building(dict(_mounted()), tuple(places))
    made.place("/", False)
    _cover(sockets, made.built, f"{_BASE}/view", devices)
    _devices(f"{_BASE}/view/dev", devices, room)
    with contextlib.suppress(OSError):
        calls.mount(f"/proc/self/fd/{system}", f"{_BASE}/view/sys", None, calls.BIND | calls.REC)
        calls.read_only(f"{_BASE}/view/sys")
    calls.mount("proc", f"{_BASE}/view/proc", "proc", calls.NOSUID | calls.NODEV | calls.NOEXEC)
    calls.enter_root(f"{_BASE}/view")
    calls.read_only("/proc")
    with contextlib.suppress(OSError):
        os.chdir(here)
    return made.built


class _Building:
    """The file systems of a view, from the root down. A folder in which others are mounted is none for an overlay in
    a user's namespace: it would show what they hide. Such folders are made anew, and what is in them put there."""

    def __init__(self, mounted: dict[str, bool], places: tuple[str, ...]) -> None:
        self.built, self._mounted, self._places, self._count = ViewLayout(), mounted, places, 0
        for name in ("root", "view"):
            os.mkdir(f"{_BASE}/{name}", 0o755)
        calls.mount(f"{_BASE}/root", f"{_BASE}/view", None, calls.BIND)

    def place(self, path: str, only_read: bool) -> None:
        """Put a folder of this machine into the view. only_read: as what is around it."""
        only_read = self._mounted.get(path, only_read)
        inside = path.rstrip("/") + "/"
        if path in _SYSTEM:
            return
        if any(point.startswith(inside) for point in self._mounted if point != "/") and os.access(path, os.R_OK):
            self._divide(path, inside, only_read)
        elif only_read or not self._overlaid(path):
            self._as_it_is(path)
            if not only_read:
                self.built.read_only.append(path)

    def _as_it_is(self, path: str) -> None:
        """Put a file or a folder into the view, read-only; it is empty there where it cannot be had."""
        try:
            calls.mount(path, f"{_BASE}/view{path}", None, calls.BIND | calls.REC)
        except OSError:
            return
        calls.read_only(f"{_BASE}/view{path}")

    def _divide(self, path: str, inside: str, only_read: bool) -> None:
        below = f"/proc/self/fd/{os.open(path, os.O_PATH)}"
        copies = []
        for entry in sorted(os.scandir(path), key=lambda e: e.name):
            made = f"{_BASE}/root{inside}{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), made)
            elif entry.is_dir():
                os.mkdir(made)
                self.place(inside + entry.name, only_read)
            elif entry.is_file() and self._copied(entry, made, only_read):
                copies.append(entry.name)
            elif entry.is_file():
                Path(made).touch()
                self._as_it_is(inside + entry.name)
        _like(path, f"{_BASE}/root{path}")
        self.built.layers.append(OverlayLayer(path, _held(f"{_BASE}/root{path}"), below, True, tuple(copies)))

    def _copied(self, entry: os.DirEntry[str], made: str, only_read: bool) -> bool:
        """Whether a file is one that the script might write, and is copied, which costs little."""
        state = entry.stat()
        if only_read or state.st_size > _COPIED or not os.access(entry.path, os.W_OK):
            return False
        try:
            shutil.copy2(entry.path, made)
            os.chown(made, state.st_uid, state.st_gid)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(made)
            return False
        return True

    def _overlaid(self, path: str) -> bool:
        """Whether a file system takes an overlay, which then is in the view."""
        self._count += 1
        upper, work = f"{_BASE}/upper{self._count}", f"{_BASE}/work{self._count}"
        os.mkdir(upper)
        os.mkdir(work)
        below = f"/proc/self/fd/{os.open(path, os.O_PATH)}"
        _skeleton(path, below, upper, self._places)
        options = f"lowerdir={below},upperdir={upper},workdir={work},userxattr"
        try:
            calls.mount("overlay", f"{_BASE}/view{path}", "overlay", calls.NOSUID | calls.NODEV, options)
        except OSError:
            return False
        self.built.layers.append(OverlayLayer(path, _held(upper), below))
        return True


def _held(folder: str) -> str:
    """A way to a folder that stays when it is not mounted any more where this process sees it."""
    return f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}"


def _skeleton(point: str, below: str, upper: str, places: Sequence[str]) -> None:
    """Have folders in the upper layer that no overlay could copy there: those of users that are not in the namespace,
    as far as this one may write to them or to what is in them. Without such users there is only the first."""
    _like(below, upper)
    if os.stat(below).st_uid != _unmapped() and not any(_foreign(p) for p in ("/", "/tmp")):
        return
    inside = point.rstrip("/") + "/"
    wanted = {p.removeprefix(inside) for p in places if p.startswith(inside)}
    wanted |= set(_writable(below, "", _DEEP))
    for path in sorted({"/".join(p.split("/")[:n]) for p in wanted for n in range(1, p.count("/") + 2)}):
        source, made = f"{below}/{path}", f"{upper}/{path}"
        with contextlib.suppress(OSError):
            if _foreign(source) and stat.S_ISDIR(os.lstat(source).st_mode) and os.path.isdir(os.path.dirname(made)):
                os.mkdir(made)
                _like(source, made)


def _writable(below: str, path: str, deep: int) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(f"{below}/{path}") as entries:
        for entry in entries:
            inner = f"{path}/{entry.name}".lstrip("/")
            if not entry.is_dir(follow_symlinks=False) or entry.stat().st_uid != _unmapped():
                continue
            if os.access(entry.path, os.W_OK):
                yield inner
            if deep > 1:
                yield from _writable(below, inner, deep - 1)


def _like(source: str, made: str) -> None:
    """Give a folder the owner and the rights of another; where it cannot have the owner, what its owner here may."""
    state = os.stat(source)
    mode = stat.S_IMODE(state.st_mode)
    if state.st_uid == _unmapped():
        may = sum(bit for bit in (os.R_OK, os.W_OK, os.X_OK) if os.access(source, bit))
        os.chmod(made, (mode & 0o1077) | may << 6)
    else:
        os.chown(made, state.st_uid, state.st_gid)
        os.chmod(made, mode)
    os.utime(made, ns=(state.st_atime_ns, state.st_mtime_ns))


def _foreign(path: str) -> bool:
    return os.path.exists(path) and os.stat(path).st_uid == _unmapped()


def _unmapped() -> int:
    """The number that users have who are not in the namespace; -1 where all are."""
    if len(Path("/proc/self/uid_map").read_text().split()) == 3 and os.getuid() != 0:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return -1


def _mounted() -> Iterator[tuple[str, bool]]:
    """Where something is mounted, and whether that can only be read."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        point = words[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
        if not point.startswith(tuple(place + "/" for place in _SYSTEM)):
            yield point, any("ro" in words[at].split(",") for at in (5, words.index("-") + 3))


def _cover(sockets: Sequence[str], built: ViewLayout, root: str, devices: dict[str, int]) -> None:
    """Put a device over sockets that could be connected to: no overlay lets anybody through to those below it."""
    for path in sockets:
        if any(path.startswith(place.rstrip("/") + "/") for place in built.read_only) and "null" in devices:
            with contextlib.suppress(OSError):
                calls.mount(f"/proc/self/fd/{devices['null']}", root + path, None, calls.BIND)


def listening_sockets() -> list[str]:
    """The sockets of this machine that have a path."""
    try:
        lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return []
    found = {words[7] for line in lines if len(words := line.split(maxsplit=7)) == 8}
    return sorted(path for path in found if path.startswith("/"))


def _devices(place: str, devices: dict[str, int], room: int) -> None:
    calls.mount("tmpfs", place, "tmpfs", calls.NOSUID | calls.NOEXEC, "size=65536,mode=755")
    for name, handle in devices.items():
        Path(f"{place}/{name}").touch()
        calls.mount(f"/proc/self/fd/{handle}", f"{place}/{name}", None, calls.BIND)
    for name, target in _LINKS.items():
        os.symlink(target, f"{place}/{name}")
    os.mkdir(f"{place}/shm", 0o1777)
    calls.mount("tmpfs", f"{place}/shm", "tmpfs", calls.NOSUID | calls.NODEV, f"size={room // 2},mode=1777")
    os.mkdir(f"{place}/pts")
    with contextlib.suppress(OSError):
        calls.mount("devpts", f"{place}/pts", "devpts", calls.NOSUID | calls.NOEXEC, "newinstance,ptmxmode=0666")
    calls.mount("none", place, None, 32 | calls.BIND | calls.RDONLY | calls.NOSUID | calls.NOEXEC)
