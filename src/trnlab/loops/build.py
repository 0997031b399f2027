# SPDX-License-Identifier: Apache-2.0
"""Makes all loops ahead of time, with Numba, as objects that need neither Numba nor this version of Python.

A loop is typed and lowered by Numba, and called by a wrapper, which takes its arguments as words of 64 bits; both are
optimised together, once. Memory that a loop allocates comes from the C library.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from trnlab import loops
from trnlab.files import write_atomic
from trnlab.loops import compile_progress, kinds, prebuilt, vectors
from trnlab.loops.compile_progress import say

SIGNATURES = Path(__file__).parent / "signatures.txt"
_EXPORTING = "trnlab.sim.functional.interpreter"  # what it imports exports all loops that have symbols
# Of the C library, which is in every process.
_AT_HAND = frozenset({"memcpy", "memmove", "memset", "malloc", "free", "sched_yield"})


def signatures() -> list[str]:
    """Loops that Python calls, each with the names of its arguments."""
    return SIGNATURES.read_text().split("\n")[:-1] if SIGNATURES.exists() else []


def jobs() -> list[str]:
    """Everything there is to make: symbols, and loops with their arguments. What takes long comes first."""
    import_module(_EXPORTING)
    wanted = signatures()
    return sorted(wanted, key=lambda text: not text.startswith(_EXPORTING)) + sorted(loops.EXPORTS)


def make(job: str) -> tuple[str, dict[str, Any], bytes]:
    """Symbol, description and object of a job."""
    from trnlab.loops import emitting

    if job in loops.EXPORTS:
        code, needs = emitting.exported(loops.EXPORTS[job])
        return job, {"needs": _checked(job, needs)}, code
    name, _, arguments = job.partition("(")
    symbol = f"loop_{hashlib.sha256(job.encode()).hexdigest()[:16]}"
    code, needs, returns = emitting.called(found(name), kinds.parse(f"({arguments}"), symbol)
    return symbol, {"entry": job, "returns": returns, "needs": _checked(job, needs)}, code


def found(name: str) -> loops.CompiledLoop:
    """A loop by its name."""
    if name not in loops.LOOPS:
        import_module(name.rpartition(".")[0])
    return loops.LOOPS[name]


def placed(about: dict[str, Any], before: bytes, code: bytes) -> dict[str, Any]:
    """The description of an object that follows others in a file."""
    digest = hashlib.sha256(code).hexdigest()
    return {**about, "begin": len(before), "end": len(before) + len(code), "sha256": digest}


def _checked(job: str, needs: set[str]) -> list[str]:
    """Symbols of other loops. Raises ValueError for one that would not be found without Numba."""
    unknown = needs - _AT_HAND - set(loops.EXPORTS)
    if unknown:
        raise ValueError(f"{job} needs {', '.join(sorted(unknown))}")
    return sorted(needs & set(loops.EXPORTS))


def _work(share: int, shares: int, out: Path) -> None:
    """Make every so-many-th job; a line on stdout for each that is done."""
    loops.KEEP[0] = False
    header: dict[str, Any] = {"objects": {}}
    code = b""
    for job in jobs()[share::shares]:
        try:
            symbol, about, made = make(job)
        except Exception as error:
            print(
                f"left to Numba: {job.partition('(')[0]}: {type(error).__name__}: {error}".replace("\n", " "),
                flush=True,
            )
            continue
        header["objects"][symbol] = placed(about, code, made)
        code += made
        print("done", flush=True)
    out.write_bytes(json.dumps(header).encode() + b"\n" + code)


def build(target: Path, processes: int = 2, processor: str | None = None) -> None:
    """Make all loops, as one file. processor: LLVM's name of the one that they are for; this machine's by default.

    Raises RuntimeError where a process that makes them fails.
    """
    began, total = time.monotonic(), len(jobs())
    say(f"compiling {total} loops for {processor or 'this machine'}, once")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    environment = {**os.environ, prebuilt.SETTING: "numba", compile_progress.SILENT: "1"}
    if processor is not None:
        environment |= {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": "", prebuilt.PROCESSOR: processor}
    parts = [target.with_name(f"{target.name}.{os.getpid()}.{share}") for share in range(processes)]
    try:
        _run(parts, environment, total, began)
        write_atomic(target, joined(map(_read, parts), processor))
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    size = target.stat().st_size / 1e6
    say(f"compiled the loops in {time.monotonic() - began:.0f} s: {target} ({size:.1f} MB)")


def _run(parts: list[Path], environment: dict[str, str], total: int, began: float) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "trnlab.loops", "--share", f"{share}/{len(parts)}", "--out", str(part)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for share, part in enumerate(parts)
    ]
    due = began + 5
    for done, line in enumerate(_lines(workers), 1):
        if line.startswith("left"):
            say(line)
        if (now := time.monotonic()) >= due:
            due = now + 5
            say(f"compiled {done} of {total} loops, {now - began:.0f} s")
    if any(worker.wait() for worker in workers):
        raise RuntimeError("a process that compiles loops failed; its message stands above")


def _lines(workers: list[subprocess.Popen[str]]) -> Iterator[str]:
    """What all of them print, as it comes."""
    import selectors

    with selectors.DefaultSelector() as waiting:
        for worker in workers:
            assert worker.stdout is not None
            waiting.register(worker.stdout, selectors.EVENT_READ)
        while waiting.get_map():
            for ready, _ in waiting.select():
                line = ready.fileobj.readline()  # type: ignore[union-attr]
                if line:
                    yield line.strip()
                else:
                    waiting.unregister(ready.fileobj)


def _read(part: Path) -> tuple[dict[str, Any], bytes]:
    first, _, code = part.read_bytes().partition(b"\n")
    return json.loads(first)["objects"], code


def joined(parts: Iterable[tuple[dict[str, Any], bytes]], processor: str | None) -> bytes:
    """One file of what several processes have made."""
    objects: dict[str, Any] = {}
    entries: dict[str, Any] = {}
    code = b""
    for described, more in parts:
        for symbol, about in described.items():
            if "entry" in about:
                entries[about.pop("entry")] = {"symbol": symbol, "returns": about.pop("returns")}
            objects[symbol] = {**about, "begin": about["begin"] + len(code), "end": about["end"] + len(code)}
        code += more
    header = {**_about(processor), "entries": entries, "objects": objects}
    return json.dumps(header).encode() + b"\n" + code


def _about(processor: str | None) -> dict[str, Any]:
    import llvmlite.binding as llvm

    features = prebuilt.features_of(processor)
    lanes, registers = vectors.of(features)
    return {
        "format": prebuilt.FORMAT,
        "stamp": prebuilt.stamp(),
        "triple": llvm.get_default_triple(),
        "processor": processor or llvm.get_host_cpu_name(),
        "features": sorted(name for name, has in features.items() if has),
        "vectors": {"lanes": lanes, "registers": registers},
    }
