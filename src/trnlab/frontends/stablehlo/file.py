# SPDX-License-Identifier: Apache-2.0
"""`trnlab run model.mlir`: a module of StableHLO from a file, once, on given or random inputs.

A file is MLIR text, MLIR bytecode (portable artifacts among them), or what `jax.export` serialized.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from trnlab.errors import TrnlabError, UsageError
from trnlab.files import write_atomic
from trnlab.frontends.common import engine
from trnlab.frontends.stablehlo import SegmentedProgram, import_module
from trnlab.frontends.stablehlo.formats import in_precision
from trnlab.frontends.stablehlo.mlir import WIDE
from trnlab.graph.ir import TensorType
from trnlab.runtime.notices import say, tell
from trnlab.runtime.script import contents, record
from trnlab.runtime.session import Session

Array = np.ndarray[Any, Any]
OUTPUTS = "outputs.npz"
_SHOWN = 6  # elements of an output


def run_file(path: Path, session: Session, out: Path | None, inputs: Path | None) -> int:
    """Run a module once, and show what came out; returns the exit status. The outputs go into the run's folder.

    inputs: an .npz whose arrays have the arguments' names (arg0, arg1, ...) or are in their order; without it they
    are random, by the session's seed. Raises UsageError (TRN230, TRN236) for files that do not fit.
    """
    program = in_precision(import_module(read(path), path.stem), session)
    given = arguments(program, inputs, session.seed)

    def work() -> int:
        try:
            results = program.load(engine.current().compile)(given)
        except TrnlabError as error:
            tell(error)
            return 2
        for i, (array, kind) in enumerate(zip(results, program.result_types)):
            print(f"out{i}  {kind}  {_shown(array)}")
        folder = session.run.folder  # type: ignore[union-attr]
        held = BytesIO()
        np.savez(held, **{f"out{i}": _plain(a) for i, a in enumerate(results)})  # type: ignore[arg-type]
        write_atomic(folder / OUTPUTS, held.getvalue())
        return 0

    if inputs is None:
        say(f"inputs are random numbers (seed {session.seed}); --inputs FILE.npz gives others")
    return record(path.resolve(), path.stem, [], session, out, work)


def read(path: Path) -> str | bytes:
    """The module that a file holds. Raises UsageError (TRN123, TRN230) for what cannot be read."""
    return module(path, contents(path))


def module(path: Path, data: bytes) -> str | bytes:
    """The module that a file with this content holds. Raises UsageError (TRN230) for what is none."""
    if data[:4] == b"ML\xefR":
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _exported(path, data)


def _exported(path: Path, data: bytes) -> bytes:
    """The module in what jax.export serialized."""
    try:
        from jax import export

        found: bytes = export.deserialize(bytearray(data)).mlir_module_serialized
    except Exception as error:
        raise UsageError(
            f"{str(path)!r} is neither MLIR nor an export of JAX that can be read here",
            code="TRN230",
            got=f"{type(error).__name__}: {error}".splitlines()[0],
            remedy="export it with jax.export.export(f)(...).serialize(), or write exported.mlir_module() as text",
        ) from error
    return found


def arguments(program: SegmentedProgram, inputs: Path | None, seed: int) -> list[Array]:
    """An array per argument, in the formats that the chip holds them in."""
    kinds = program.argument_types
    if inputs is None:
        rng = np.random.default_rng(seed)
        return [_random(rng, kind) for kind in kinds]
    arrays = _in_order(inputs, len(kinds))
    return [_fitted(array, kind, i) for i, (array, kind) in enumerate(zip(arrays, kinds))]


def _in_order(inputs: Path, count: int) -> Sequence[Array]:
    try:
        with np.load(inputs) as file:
            held = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{str(inputs)!r} is no .npz that can be read: {error}", code="TRN236", remedy="write it with numpy.savez"
        ) from error
    names = [f"arg{i}" for i in range(count)]
    if set(names) == set(held):
        return [held[name] for name in names]
    if len(held) != count:
        raise UsageError(
            f"{str(inputs)!r} has not as many arrays as the module has arguments",
            code="TRN236",
            limit=count,
            got=len(held),
            remedy="give one array per argument",
        )
    return list(held.values())


def _fitted(array: Array, kind: TensorType, number: int) -> Array:
    held = WIDE.get(kind.dtype, kind.dtype)
    fits = array.shape == kind.shape and (array.dtype.kind == "b") == (held.kind == "b")
    if not fits or (array.dtype.kind == "f" and held.is_integer):
        raise UsageError(
            f"argument arg{number} of the module does not fit",
            code="TRN236",
            limit=kind,
            got=f"{array.dtype.name}{list(array.shape)}",
            remedy="give one of this type",
        )
    return np.asarray(array.astype(held.numpy), order="C")


def _random(rng: np.random.Generator, kind: TensorType) -> Array:
    """Normal numbers; of whole ones small indices, which most tables have; truth values of either kind."""
    held = WIDE.get(kind.dtype, kind.dtype)
    if held.is_float:
        return rng.standard_normal(kind.shape).astype(np.float32).astype(held.numpy)
    return rng.integers(0, 2 if held.kind == "b" else 8, kind.shape).astype(held.numpy)


def _plain(array: Array) -> Array:
    """In a dtype that NumPy's files know."""
    return array if array.dtype.kind in "fiub" else array.astype(np.float32)


def _shown(array: Array) -> str:
    """The first elements, and of many the mean and the extremes."""
    wide = _plain(array).astype(np.float64)
    first = " ".join(f"{x:.6g}" for x in wide.reshape(-1)[:_SHOWN])
    if array.size <= _SHOWN:
        return first
    return f"{first} ...  mean {wide.mean():.6g}, from {wide.min():.6g} to {wide.max():.6g}"
