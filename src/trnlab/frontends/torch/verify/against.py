# SPDX-License-Identifier: Apache-2.0
"""Two scripts side by side on the host: modules matched by path, and within the first that differs its ops by order.

Both compute in float64, so that a difference that shows above float32's rounding is one of the programs. The first
module whose output differs while the outputs of everything before it agree is to blame; its own ops (not those of
modules inside of it) are then matched in order, and the first that differs is named at its line in both scripts.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode, resolve_name

from trnlab.frontends.torch.device.dlpack import as_host
from trnlab.frontends.torch.findings.locations import here, layer_of, parse
from trnlab.frontends.torch.verify.steps import StepCounter
from trnlab.verify.bounds import roundoff
from trnlab.verify.compare import relative, within
from trnlab.verify.result import DIFFERS, ROUNDING, SAME, OpLocation, OpResult

BUDGET = 1 << 30  # bytes of results that are kept of one script
FAR = 4 * roundoff("float32")  # relative distance of two tensors that float64 would not make
OPTION, FORMULA, PARAMETER = "another option", "another computation", "another parameter"
REMEDY = "compare the two lines"
_QUIET = frozenset(
    {"__get__", "__set__", "size", "dim", "numel", "backward", "register_hook", "requires_grad_", "stride"}
)


@dataclass(frozen=True)
class Record:
    """One result, of a function or of a module."""

    order: int  # in time, in its script
    step: int
    layer: str
    name: str
    place: OpLocation
    value: Tensor
    options: str = ""  # arguments but tensors
    gradient: bool = False


@dataclass
class ScriptRecording:
    """What a script computed: functions by layer and step, modules in the order in which they were done."""

    steps: StepCounter
    functions: dict[tuple[int, str], list[Record]] = field(default_factory=lambda: defaultdict(list))
    modules: dict[tuple[int, str, int, bool], Record] = field(default_factory=dict)
    parameters: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    bytes: int = 0
    full: bool = False
    count: int = 0

    def next(self) -> int:
        """The number of the next record."""
        self.count += 1
        return self.count

    def keep(self, value: Tensor) -> Tensor | None:
        """A copy on the host in float64, unless there are too many already."""
        self.full = self.full or self.bytes > BUDGET
        if self.full or not value.is_floating_point():
            return None
        found = as_host(value.detach()).double().clone()
        self.bytes += found.nbytes
        return found

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within the block everything is recorded."""
        calls: Counter[tuple[int, str]] = Counter()
        handle = register_module_forward_hook(lambda module, args, out: self._module(module, out, calls))
        try:
            with _Functions(self):
                yield
        finally:
            handle.remove()

    def _module(self, module: nn.Module, out: Any, calls: Counter[tuple[int, str]]) -> None:
        step, layer = self.steps.number, layer_of(sys._getframe(1))
        number = calls[step, layer]
        calls[step, layer] += 1
        if layer == "model" and number == 0:
            for name, p in module.named_parameters():
                if (kept := self.keep(p)) is not None:
                    self.parameters[step, name] = kept
        tensor = next((t for t in (out if isinstance(out, tuple | list) else [out]) if isinstance(t, Tensor)), None)
        kept = self.keep(tensor) if tensor is not None else None
        if tensor is None or kept is None:
            return
        place = _place(here(sys._getframe(1)))
        record = Record(self.next(), step, layer, type(module).__name__, place, kept)
        self.modules[step, layer, number, False] = record
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: self._gradient(record, number, grad))

    def _gradient(self, of: Record, number: int, grad: Tensor) -> None:
        kept = self.keep(grad)
        if kept is not None:
            self.modules[of.step, of.layer, number, True] = Record(
                self.next(), of.step, of.layer, of.name, of.place, kept, gradient=True
            )


class _Functions(TorchFunctionMode):
    """Writes down the results of functions, with line and layer."""

    def __init__(self, into: ScriptRecording) -> None:
        super().__init__()
        self._into = into

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        first = result[0] if isinstance(result, tuple | list) and result else result
        if name in _QUIET or not isinstance(first, Tensor) or not torch.is_grad_enabled():
            return result
        frame = sys._getframe(1)
        layer, step = layer_of(frame), self._into.steps.number
        kept = self._into.keep(first) if layer or first.requires_grad else None
        if kept is not None:
            options = _options(args, kwargs or {})
            full = (resolve_name(function) or name).replace("torch.nn.functional", "F")
            record = Record(self._into.next(), step, layer, full, _place(here(frame)), kept, options)
            self._into.functions[step, layer].append(record)
        return result


def _options(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    shown = [repr(a) for a in args if _plain(a)]
    shown += [f"{k}={v!r}" for k, v in kwargs.items() if _plain(v)]
    return ", ".join(shown)


def _plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_plain(v) for v in value)
    return not isinstance(value, Tensor)


def _place(stack: str | None) -> OpLocation:
    where = parse(stack or "")
    return OpLocation(where.file, where.line, where.function, where.text, where.layer) if where else OpLocation()


class ScriptComparison:
    """Two recordings, this script's and the other's."""

    def __init__(self, this: ScriptRecording, other: ScriptRecording) -> None:
        self.this, self.other = this, other

    def results(self) -> Iterator[OpResult]:
        """Modules in the order in which they were done, step by step: parameters, forward, backward. Ends with the
        first that differs."""
        for order, found in enumerate(self._in_order()):
            yield replace(found, order=order)
            if found.status == DIFFERS:
                return

    def unmatched(self) -> list[str]:
        """Paths of modules that the other script does not have."""
        return sorted({k[1] for k in self.this.modules} - {k[1] for k in self.other.modules})

    def _in_order(self) -> Iterator[OpResult]:
        for step in range(1, len(self.this.steps.losses) + 1):
            yield from self._parameters(step)
            for key, record in self.this.modules.items():
                twin = self.other.modules.get(key)
                if key[0] != step or twin is None:
                    continue
                if _far(record, twin):
                    yield self._within(record, twin)
                else:
                    yield _compared(record, twin, SAME if torch.equal(record.value, twin.value) else ROUNDING)
            yield from self._loose(step)

    def _parameters(self, step: int) -> Iterator[OpResult]:
        when = "before the first step" if step == 1 else f"after the update of step {step - 1}"
        for (at, name), value in self.this.parameters.items():
            twin = self.other.parameters.get((step, name))
            if at != step or twin is None:
                continue
            layer = f"model.{name}"
            mine, theirs = (Record(0, step, layer, "parameter", OpLocation(layer=layer), v) for v in (value, twin))
            if _far(mine, theirs):
                yield _compared(mine, theirs, DIFFERS, PARAMETER, f"they differ {when}")

    def _loose(self, step: int) -> Iterator[OpResult]:
        """What is computed outside of all modules, such as a loss function."""
        found = self._first_op(self.this.functions.get((step, ""), []), self.other.functions.get((step, ""), []))
        if found is not None:
            yield found[1]

    def _within(self, record: Record, twin: Record) -> OpResult:
        """The op that made a module differ: one of its own, or one around it that came before; else the module."""
        found = []
        for layer in upwards(record.layer) if not record.gradient else ():
            mine = [r for r in self.this.functions.get((record.step, layer), []) if r.order < record.order]
            first = self._first_op(mine, self.other.functions.get((record.step, layer), []))
            found += [first] if first is not None else []
        if not found:
            return _compared(record, twin, DIFFERS, FORMULA)
        return min(found, key=lambda pair: pair[0].order)[1]

    def _first_op(self, mine: Sequence[Record], theirs: Sequence[Record]) -> tuple[Record, OpResult] | None:
        names = [r.name for r in mine], [r.name for r in theirs]
        for tag, a, b, c, d in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
            if tag == "equal":
                for x, y in zip(mine[a:b], theirs[c:d]):
                    if _far(x, y):
                        options = x.options != y.options
                        why = f"({x.options}) here, ({y.options}) there" if options else ""
                        return x, _compared(x, y, DIFFERS, OPTION if options else FORMULA, why)
            elif b > a:  # written differently: to blame only if what comes next differs, too
                after = next(((x, y) for x, y in zip(mine[b - 1 : b], theirs[max(d - 1, 0) : d])), None)
                if after is not None and _far(*after):
                    why = f"{after[0].name} here, {after[1].name} there"
                    return after[0], _compared(*after, DIFFERS, FORMULA, why)
        return None


def upwards(layer: str) -> Iterator[str]:
    """A layer, those around it, and the code outside of all."""
    while layer:
        yield layer
        layer = layer.rpartition(".")[0]
    yield ""


def _far(x: Record, y: Record) -> bool:
    return x.value.shape != y.value.shape or relative(x.value.numpy(), y.value.numpy()) > FAR


def _compared(x: Record, y: Record, status: str, condition: str = "", why: str = "") -> OpResult:
    shape = tuple(x.value.shape)
    format = str(x.value.dtype).removeprefix("torch.")
    blank = OpResult(
        x.step,
        0,
        x.name,
        x.gradient,
        x.place,
        shape,
        format,
        "module",
        status,
        condition=condition,
        why=why,
        remedy=REMEDY if status == DIFFERS else "",
        other=y.place,
    )
    if tuple(y.value.shape) != shape:
        return replace(blank, why=f"{list(shape)} here, {list(y.value.shape)} there", ratio=float("inf"))
    worst = within(x.value.numpy(), y.value.numpy(), FAR * y.value.abs().numpy(), "float32")
    error = relative(x.value.numpy(), y.value.numpy())
    return replace(
        blank,
        index=worst.index,
        chip=worst.chip,
        reference=worst.reference,
        wrong=worst.wrong,
        error=error,
        ratio=error / FAR,
        bound=worst.bound,
    )
