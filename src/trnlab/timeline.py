# SPDX-License-Identifier: Apache-2.0
"""The timeline: what every timing simulator emits and every viewer reads. Times are integer picoseconds.

One row per executed instruction, in program order. The file format:

    bytes 0..7    b"TRNTIME1"
    bytes 8..15   length of the header, little-endian unsigned
    header        JSON: version, meta, tables, columns (name, dtype, offset and nbytes after the header)
    columns       little-endian arrays, each starting on a multiple of 64 bytes after the header

A file is written aside and renamed, so no reader sees half of one; nothing in it is executed on load.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from trnlab.documents.notebooks import ShownInNotebooks
from trnlab.errors import RunError
from trnlab.files import json_of, write_atomic
from trnlab.loops import compiled

MAGIC = b"TRNTIME1"
VERSION = 1
# "cc": the cores of the chip that do collectives, for programs of several ranks.
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "cc")
CORE_ENGINES = ENGINES[:5]  # those that every core has
DMA_ENGINES = 16
CAUSES = (
    "start",  # nothing: first instruction of its engine
    "issue",  # the engine was busy
    "operand",  # an operand was not written yet
    "reuse",  # a tile to overwrite was still read
    "overwrite",  # a tile to overwrite was still written
    "port",  # another engine used the memory port that the two share
    "peer",  # another core had not come to where the two meet
    "part",  # a part of the PE array was busy
)
_ISSUE = CAUSES.index("issue")
Column = np.ndarray[Any, np.dtype[Any]]
_ALIGN = 64
_LARGEST = 2**62  # of a number in a file: sums of a few still fit in 64 bits
_MOST_CORES = 4096
_PLAIN = ("name", "target", "total", "startup", "completion", "meta")
_DTYPES: Mapping[str, str] = {
    "start": "<i8",
    "end": "<i8",
    "begin": "<i8",
    "done": "<i8",
    "blocker": "<i4",
    "cause": "|i1",
    "held": "<i4",
    "engine": "|i1",
    "op": "<i4",
    "call": "<i4",
}


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What one kind of instruction is; the fields of `isa.Work`, and for DMA."""

    name: str
    kind: str
    n: int
    m: int
    k: int
    dtype: str
    flops: int = 0
    # hbm_read, hbm_write: bytes
    hbm_read: int = 0
    hbm_write: int = 0
    queue: int = -1  # -1 for no DMA
    # first_lane, lanes: DMA engines that take part, each for lane_time picoseconds
    first_lane: int = 0
    lanes: int = 0
    lane_time: int = 0
    active: int = 0  # picoseconds of a trigger's time that its instruction takes; 0: all of them


@dataclass(frozen=True, slots=True)
class CallInfo:
    """One call of a routine: instructions [first, first + count) of the timeline, on core number `core`."""

    label: str
    routine: str
    first: int
    count: int
    loc: str = ""
    core: int = 0


@dataclass(eq=False)
class Timeline(ShownInNotebooks):
    """When the instructions of one run of a program were executed. Columns have one row per instruction."""

    name: str
    target: str
    total: int
    startup: int
    completion: int
    ops: tuple[OpInfo, ...]
    calls: tuple[CallInfo, ...]
    # start, end: the engine is occupied (DMA: the engine that triggers it)
    start: Column
    end: Column
    begin: Column  # data starts to flow (DMA) or start
    done: Column  # the result is usable
    # blocker, cause: the instruction that its start waited for last (-1: none), and why, as an index of CAUSES
    blocker: Column
    cause: Column
    held: Column  # the transfer that this one waited for on its queue or DMA engines (-1: none)
    engine: Column  # ENGINES index
    # op, call: indices into `ops` and `calls`
    op: Column
    call: Column
    # the chip's name, and for rooflines its peak_flops by format (FLOP/s) and hbm_bandwidth (bytes/s). `total` is
    # the time of the whole run; the first instruction does not start before `startup`. `completion` is the part
    # of a transfer's `done` that lies after its last byte.
    meta: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def cores(self) -> int:
        """How many cores ran it."""
        return 1 + max((call.core for call in self.calls), default=0)

    def core_of(self) -> Column:
        """The number of the core that ran each instruction."""
        return np.array([call.core for call in self.calls], np.int32)[self.call]

    def issued(self) -> Column:
        """When each instruction ended on its engine; software may still make the descriptors of its transfer."""
        active = np.array([op.active for op in self.ops], np.int64)[self.op]
        return np.where(active > 0, np.minimum(self.start + active, self.end), self.end)

    def columns(self) -> dict[str, Column]:
        """The columns by name, in file order."""
        return {name: getattr(self, name) for name in _DTYPES}

    def to_bytes(self) -> bytes:
        """The timeline as a file of this format."""
        blobs, entries, offset = [], [], 0
        for name, column in self.columns().items():
            blob = np.ascontiguousarray(column, _DTYPES[name]).tobytes()
            entry = {"name": name, "dtype": _DTYPES[name], "offset": offset, "nbytes": len(blob)}
            entries.append({**entry, "crc": zlib.crc32(blob)})
            padding = -len(blob) % _ALIGN
            blobs.append(blob + b"\0" * padding)
            offset += len(blob) + padding
        header = {
            "version": VERSION,
            **{key: getattr(self, key) for key in _PLAIN},
            "ops": [astuple(op) for op in self.ops],
            "calls": [astuple(call) for call in self.calls],
            "columns": entries,
        }
        text = json.dumps(header).encode()
        text += b" " * (-(len(MAGIC) + 8 + len(text)) % _ALIGN)
        return b"".join((MAGIC, struct.pack("<Q", len(text)), text, *blobs))

    def same_times(self, other: Timeline) -> bool:
        """Whether both have the same instructions at the same times."""
        mine, theirs = self.columns(), other.columns()
        return self.total == other.total and all(np.array_equal(mine[n], theirs[n]) for n in mine)


@compiled
def held_back_by(i: int, by_issue: bool, blocker: Any, cause: Any, held: Any, begin: Any) -> Any:
    """The instruction that held back `i`, whether by occupying the engine, and whether it held back the transfer.

    by_issue: what counts of `i` is when its engine was free again, not when its result was there. A transfer that
    began later than `i`, and shared DMA engines with it from then on, did not hold back its first byte.
    """
    if held[i] >= 0 and not by_issue and begin[held[i]] <= begin[i]:
        return held[i], False, True
    return blocker[i], cause[i] == _ISSUE, False


def save(timeline: Timeline, path: Path) -> None:
    """Write the timeline to `path`, replacing what is there. Raises OSError as the file system does."""
    write_atomic(path, timeline.to_bytes())


def load(path: Path) -> Timeline:
    """Read what `save` wrote. Raises RunError when the file is missing, cut short, damaged or of another version."""
    try:
        return from_bytes(path.read_bytes())
    except OSError as error:
        raise RunError(
            f"no timeline at {path}", code="TRN811", got=error.strerror, remedy="run the script again"
        ) from error
    except ValueError as error:
        raise RunError(
            f"{path} is not a whole timeline",
            code="TRN812",
            limit=f"version {VERSION}",
            got=error,
            remedy="delete it and run the script again",
        ) from error


def from_bytes(data: bytes) -> Timeline:
    """The timeline that `Timeline.to_bytes` gave. Raises ValueError for anything else."""
    try:
        header, columns = _parse(data)
        plain: dict[str, Any] = {key: header[key] for key in _PLAIN}
        ops, calls = (tuple(_row(kind, row) for row in header[key]) for kind, key in _ROWS)
        found = Timeline(**plain, ops=ops, calls=calls, **dict[str, Any](columns))
    except (KeyError, TypeError, struct.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    _check(found)
    return found


def _row(kind: type[Any], row: Any) -> Any:
    """An object of `kind` from the list of its fields."""
    made = kind(*row)
    for f in fields(kind):
        value = getattr(made, f.name)
        right = type(value) is str if f.type == "str" else type(value) is int and abs(value) < _LARGEST
        if not right:
            raise ValueError(f"{f.name} of {kind.__name__} is {value!r}")
    return made


def _check(t: Timeline) -> None:
    """Raise ValueError for a timeline whose parts do not fit each other."""
    rows = len(t)
    if any(len(column) != rows for column in t.columns().values()):
        raise ValueError("columns of different lengths")
    for name in ("total", "startup", "completion"):
        if type(getattr(t, name)) is not int or not 0 <= getattr(t, name) < _LARGEST:
            raise ValueError(f"{name} is {getattr(t, name)!r}")
    if not isinstance(t.name, str) or not isinstance(t.target, str) or not isinstance(t.meta, dict):
        raise ValueError("name, target and meta are of another kind")
    _check_meta(t.meta)
    bounds = {
        "blocker": (-1, rows),
        "held": (-1, rows),
        "cause": (0, len(CAUSES)),
        "engine": (0, len(ENGINES)),
        "op": (0, len(t.ops)),
        "call": (0, len(t.calls)),
        **dict.fromkeys(("start", "end", "begin", "done"), (0, _LARGEST)),
    }
    for name, (low, high) in bounds.items():
        column = getattr(t, name)
        if rows and not low <= int(column.min()) <= int(column.max()) < high:
            raise ValueError(f"column {name} holds values outside of {low} to {high - 1}")
    for call in t.calls:
        if not (0 <= call.first <= call.first + call.count <= rows and 0 <= call.core < _MOST_CORES):
            raise ValueError(f"call {call.label!r} is not in the timeline")


def _check_meta(meta: dict[str, Any]) -> None:
    """The figures of rooflines, where they are there."""
    peaks, bandwidth = meta.get("peak_flops", {}), meta.get("hbm_bandwidth", 1)
    if (
        not isinstance(peaks, dict)
        or ("peak_flops" in meta and not peaks)
        or not all(_is_rate(x) for x in (*peaks.values(), bandwidth))
    ):
        raise ValueError("peak_flops and hbm_bandwidth are of another kind")


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


_ROWS: tuple[tuple[type[Any], str], ...] = ((OpInfo, "ops"), (CallInfo, "calls"))


def _parse(data: bytes) -> tuple[dict[str, Any], dict[str, Column]]:
    if data[:8] != MAGIC:
        raise ValueError("it does not start as one")
    (length,) = struct.unpack_from("<Q", data, 8)
    header = json_of(data[16 : 16 + length])
    if not isinstance(header, dict) or not isinstance(header.get("columns"), list):
        raise ValueError("its header is of another kind")
    if header["version"] != VERSION:
        raise ValueError(f"version {header['version']}")
    columns = {}
    for entry in header["columns"]:
        if not isinstance(entry, dict) or entry["name"] not in _DTYPES or min(entry["offset"], entry["nbytes"]) < 0:
            raise ValueError("a column is of another kind")
        first = 16 + length + entry["offset"]
        blob = data[first : first + entry["nbytes"]]
        if len(blob) != entry["nbytes"] or zlib.crc32(blob) != entry["crc"]:
            raise ValueError(f"column {entry['name']} is damaged")
        columns[entry["name"]] = np.frombuffer(blob, _DTYPES[entry["name"]])
    if set(columns) != set(_DTYPES):
        raise ValueError("columns are missing")
    return header, columns
