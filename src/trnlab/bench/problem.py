# SPDX-License-Identifier: Apache-2.0
"""What candidates are to compute: a reference in NumPy, PyTorch or as another kernel, and the inputs of each case.

A file of a reference has

    def inputs(rng): ...            # or get_inputs(), which draws from np.random; or --input on the command line
    def reference(x, y): ...        # or forward; on what inputs gave
    def transform_to_nki_inputs(inputs): ...            # optional, as NKIBench has it: what kernels are given
    def transform_nki_outputs(results, reference): ...  # optional: kernels' results in the shapes of the reference
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trnlab.bench import hostile
from trnlab.bench.candidate import split
from trnlab.errors import UsageError
from trnlab.lang.formats import format_of
from trnlab.nki.imports import install_imports
from trnlab.nki.tracing.arrays import is_array, to_host

NO_REFERENCE, NO_INPUT = "TRN841", "TRN844"
USUAL = 2  # cases with the inputs as they are made
_FUNCTIONS, _INPUTS = ("reference", "forward", "ref"), ("inputs", "get_inputs")
_ARRAY = re.compile(r"(?:(\w+)=)?(\w+)\[([\d, ]*)\]")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """Inputs of one kind."""

    name: str
    given: tuple[Any, ...]  # as the reference takes them
    arguments: tuple[Any, ...]  # as kernels do, on the host


@dataclass(frozen=True)
class Problem:
    """A reference, its inputs, and how both are translated for kernels."""

    name: str
    reference: Callable[..., Any] | None
    make: Callable[[np.random.Generator], Sequence[Any]]
    to_kernel: Callable[[Sequence[Any]], Sequence[Any]] = field(default=list)
    from_kernel: Callable[[Any, Any], Any] | None = None
    source: str = ""  # what tells it from others

    def cases(self, seed: int, families: Sequence[str]) -> Iterator[Case]:
        """Usual inputs, twice, then those of each family. seed: none that a candidate could know."""
        for number in range(USUAL):
            yield self._case(f"usual {number + 1}", self._drawn(seed + number))
        for number, family in enumerate(families):
            rng = np.random.default_rng([seed, number])
            given = self._drawn(seed)
            plain = [to_numpy(value) for value in given]
            changed = hostile.made(family, plain, rng)
            yield self._case(family, [_as(new, old) for new, old in zip(changed, given)])

    def _drawn(self, seed: int) -> list[Any]:
        np.random.seed(seed % (1 << 32))
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(seed)
        return list(self.make(np.random.default_rng(seed)))

    def _case(self, name: str, given: Sequence[Any]) -> Case:
        arguments = [to_numpy(value) for value in self.to_kernel(given)]
        return Case(name, tuple(given), tuple(arguments))

    def results(self, found: Any, wanted: Sequence[Array]) -> list[Array]:
        """A kernel's results in the shapes of the reference's."""
        if self.from_kernel is not None:
            return flat(self.from_kernel(found, tuple(wanted) if len(wanted) > 1 else wanted[0]))
        return flat(found)


def to_numpy(value: Any) -> Any:
    """An array of a framework as NumPy's, in the chip's formats; anything else as it is."""
    return to_host(value).data if is_array(value) else value


def _as(new: Any, old: Any) -> Any:
    """A changed array as the framework's that it was made from."""
    if isinstance(old, np.ndarray) or not is_array(old):
        return new
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(old, torch.Tensor):
        return torch.from_numpy(np.ascontiguousarray(new.astype(np.float32))).to(old.dtype)
    return type(old)(new)


def flat(value: Any) -> list[Array]:
    """The arrays of a result, in order; numbers are arrays of one element."""
    if isinstance(value, list | tuple):
        return [array for item in value for array in flat(item)]
    if isinstance(value, dict):
        return [array for item in value.values() for array in flat(item)]
    if value is None:
        return []
    if is_array(value) and not isinstance(value, np.ndarray):
        torch = sys.modules.get("torch")
        wide = torch is not None and isinstance(value, torch.Tensor) and value.dtype == torch.float64
        return [value.detach().numpy() if wide else to_host(value).data]
    return [np.asarray(value)]


def problem(reference: str | None, inputs: Sequence[str]) -> Problem:
    """The problem of `--reference FILE[:FUNCTION]` and `--input ...`. Raises UsageError (TRN841, TRN844)."""
    if reference is None:
        return Problem("", None, drawn(inputs), source=repr(list(inputs)))
    path, function = split(reference)
    if not path.is_file():
        raise UsageError(
            "there is no such file of a reference",
            code=NO_REFERENCE,
            got=reference,
            remedy="name a Python file with a function reference(...), and one inputs(rng)",
        )
    module = _imported(path)
    names = (function,) if function else _FUNCTIONS
    found = next((getattr(module, n) for n in names if callable(getattr(module, n, None))), None)
    if found is None:
        raise UsageError(
            "the file has no reference",
            code=NO_REFERENCE,
            got=str(path),
            limit=" or ".join(names),
            remedy="name its function: FILE:FUNCTION",
        )
    return Problem(
        path.stem,
        found,
        drawn(inputs) if inputs else _making(module, path),
        getattr(module, "transform_to_nki_inputs", list),
        getattr(module, "transform_nki_outputs", None),
        hashlib.sha256(path.read_bytes()).hexdigest() + repr((names, list(inputs))),
    )


def _imported(path: Path) -> Any:
    install_imports()
    spec = importlib.util.spec_from_file_location(f"_reference_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError("a reference is no Python file", code=NO_REFERENCE, got=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _making(module: Any, path: Path) -> Callable[[np.random.Generator], Sequence[Any]]:
    made = next((getattr(module, n) for n in _INPUTS if callable(getattr(module, n, None))), None)
    if made is None:
        raise UsageError(
            "nobody says what the kernels are given",
            code=NO_INPUT,
            got=str(path),
            limit=" or ".join(_INPUTS),
            remedy="define inputs(rng) beside the reference, or give --input 'float32[512,512]' for each argument",
        )
    takes = [p for p in inspect.signature(made).parameters.values() if p.default is p.empty]
    return (lambda rng: made(rng)) if takes else (lambda rng: made())


def drawn(texts: Sequence[str]) -> Callable[[np.random.Generator], Sequence[Any]]:
    """Arguments that are drawn as texts say: float32[512,512], int32[128], or a number. Raises UsageError: TRN844."""
    if not texts:
        raise UsageError(
            "nobody says what the kernels are given",
            code=NO_INPUT,
            remedy="give --reference FILE that has inputs(rng), or --input 'float32[512,512]' for each argument",
        )
    kinds = [_kind(text) for text in texts]
    return lambda rng: [_drawn(kind, rng) for kind in kinds]


def _kind(text: str) -> Any:
    found = _ARRAY.fullmatch(text.strip())
    try:
        if found is None:
            return ast.literal_eval(text.rpartition("=")[2])
        shape = tuple(int(n) for n in found[3].split(",") if n.strip())
        return format_of(found[2]).dtype, shape
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise UsageError(
            "an input cannot be read",
            code=NO_INPUT,
            got=text,
            limit="FORMAT[SIZE,...] or a number",
            remedy="such as --input 'bfloat16[512,512]' --input 'int32[128,1]' --input 1e-5",
        ) from error


def _drawn(kind: Any, rng: np.random.Generator) -> Any:
    if not isinstance(kind, tuple) or not isinstance(kind[1], tuple):
        return kind
    form, shape = kind
    if np.dtype(form).kind in "iu":
        return rng.integers(0, 100, shape).astype(form)
    if np.dtype(form).kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return np.asarray(rng.standard_normal(shape, dtype=np.float32)).astype(form)
