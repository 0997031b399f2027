# SPDX-License-Identifier: Apache-2.0
"""`trnlab validate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from trnlab.errors import UsageError
from trnlab.validation import load, report, sources, to_json, validate

T = TypeVar("T")


def main(args: argparse.Namespace) -> int:
    """Compare predictions with all measurements, or with some of them."""
    wanted = args.only or ""
    if args.sources is not None:
        return _from_sources(args.sources, wanted, args.json)
    known = load()
    chosen = _chosen([m for m in known if wanted in m.name or wanted in m.kernel], wanted, [m.name for m in known])
    results = validate(chosen)
    print(to_json(results) if args.json else report(results))
    return 0


def _from_sources(folder: Path, wanted: str, as_json: bool) -> int:
    """Kernels from clones of public repositories; 1 when some are refused."""
    known = sources.load()
    chosen = _chosen([k for k in known if wanted in k.name or wanted == k.id], wanted, [k.name for k in known])
    absent = sources.missing(chosen, folder)
    if absent:
        raise UsageError(
            f"{str(folder)!r} lacks clones of {len(absent)} repositories", code="TRN129", got=", ".join(absent),
            remedy="; ".join(f"git clone https://github.com/{name} {folder / name}" for name in absent),
        )  # fmt: skip
    results = sources.time_all(chosen, folder, _progress(len(chosen)))
    print(sources.to_json(results) if as_json else sources.report(results))
    return int(any(r.predicted is None for r in results))


def _progress(total: int) -> Callable[[sources.Timed], None]:
    """Says on a terminal how far it is."""
    done = 0

    def say(timed: sources.Timed) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r\x1b[K{done} of {total}: {timed.kernel.name}", end=end, file=sys.stderr, flush=True)

    return say


def _chosen(found: Sequence[T], wanted: str, names: Sequence[str]) -> Sequence[T]:
    if not found:
        raise UsageError(
            f"no measurement is called {wanted!r}", code="TRN126", limit="; ".join(names),
            remedy="give a part of one of these names",
        )  # fmt: skip
    return found
