# SPDX-License-Identifier: Apache-2.0
"""`trnlab checkpoint show`, `reshard`, `to-hf` and `from-hf`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator

import torch

from trnlab.documents import Document, Note, Table, text
from trnlab.errors import RunError, UsageError
from trnlab.frontends.torch.saving.portable import convert, hugging_face
from trnlab.frontends.torch.saving.portable.tables import CheckpointTable
from trnlab.storage import open_store
from trnlab.storage.layouts import ShardingRules, parse, rules
from trnlab.units import format_bytes

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
PERIOD_S = 2.0


def main(args: argparse.Namespace) -> int:
    """Show or convert; what was written is read again and compared, bit for bit."""
    cuts = rules(args.cut)
    found = convert.source(args.url, args.step, cuts)
    if args.action == "show":
        return _show(found)
    convert.require_model(found.table)
    if found.uncovered:
        print(f"trnlab: of {args.url}: {found.uncovered}", file=sys.stderr)
    if args.action == "to-hf":
        return _to_hf(args, found, cuts)
    layout = parse(args.to)
    _followed(convert.reshard(found, open_store(args.dst), layout, args.format, cuts))
    again = convert.source(args.dst, found.step, cuts)
    _compare(found.table, again.table, args.dst, lambda: convert.undone(open_store(args.dst), found.step))
    count = len(found.table.entries)
    print(f"{count} tensors of step {found.step} in {args.dst}, {layout}, {args.format}: read again, the same bits")
    return 0


def _show(found: convert.CheckpointSource) -> int:
    table = found.table
    rows: list[tuple[str, ...]] = []
    for name, entry in table.entries.items():
        shape = "x".join(map(str, entry.shape)) or "scalar"
        kinds = len({chunk.slice for chunk in entry.chunks})
        rows.append((name, str(entry.dtype).removeprefix("torch."), shape, f"{kinds} slice{'s' * (kinds > 1)}"))
    rows += [(name, f"is {first}") for name, first in table.same.items()]
    size = format_bytes(sum(entry.nbytes for entry in table.entries.values()))
    said = f"step {found.step}, {found.form}: {len(table.entries)} tensors of {size}, {len(table.values)} values"
    print(text(Document(f"step {found.step}", [Table(rows), Note(said)])))
    return 0


def _to_hf(args: argparse.Namespace, found: convert.CheckpointSource, cuts: ShardingRules) -> int:
    to, dtype = open_store(args.dst), _DTYPES.get(args.dtype or "")
    count = _followed(hugging_face.write(found.table, to, _bytes(args.shard_size), dtype))
    if args.config is not None:
        try:
            to.write("config.json", args.config.read_bytes())
        except OSError as error:
            raise UsageError(f"{args.config} cannot be read: {error.strerror}", code="TRN545") from error
    told = "" if dtype is None else f", rounded to {args.dtype}"
    if dtype is None:
        model = CheckpointTable()
        model.same = {n: first for n, first in found.table.same.items() if n.startswith("model.")}
        model.entries = {n: e for n, e in found.table.entries.items() if e.path[0] == "model"}
        again = convert.source(args.dst, None, cuts).table
        _compare(model, again, args.dst, lambda: hugging_face.remove(to))
        told = ": read again, the same bits"
    print(f"{count} tensors of step {found.step} in {args.dst}{told}")
    return 0


def _compare(a: CheckpointTable, b: CheckpointTable, place: str, undo: Callable[[], None]) -> None:
    wrong = convert.same(a, b)
    if wrong:
        undo()
        raise RunError(
            f"what was written is not what was read: {', '.join(wrong[:4])}",
            code="TRN546",
            limit=place,
            got=f"{len(wrong)} tensors",
            remedy="do not use it, and report this",
        )


def _followed(names: Iterator[str]) -> int:
    """Count what is written, and say now and then how far it is."""
    count, last = 0, time.monotonic()
    for count, name in enumerate(names, 1):
        if time.monotonic() - last > PERIOD_S:
            last = time.monotonic()
            print(f"{count} tensors and parts of them written: {name}", file=sys.stderr, flush=True)
    return count


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text)
    unit = _UNITS.get(match[2].lower()) if match is not None else None
    if match is None or unit is None or not int(match[1]):
        raise UsageError("--shard-size is a number of bytes", code="TRN545", got=text, remedy="such as 1GiB")
    return int(match[1]) * unit
