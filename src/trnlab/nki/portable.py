# SPDX-License-Identifier: Apache-2.0
"""A recorded kernel apart from the function that it came from: as bytes for another process, which executes and times
it without running a line of the kernel's code.

    content = dump(kernel, kernel.trace(x, y))
    portable = loads(content, chip)         # verified as a program, whoever wrote the bytes
    results = portable.run([x, y], chip)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trnlab.chips.spec import Chip
from trnlab.errors import CacheError, UsageError
from trnlab.lang.formats import format_of
from trnlab.nki.tracing.arguments import objects_of
from trnlab.nki.tracing.arrays import Array, HostArray
from trnlab.nki.tracing.traces import KernelResult, Trace, memory_of, result_of
from trnlab.policy import Policy, chosen
from trnlab.program.verify import verify_program
from trnlab.runtime.analysis.counters import with_counters
from trnlab.runtime.cache import serialize
from trnlab.sim.functional import Machine, RunOptions, run_program
from trnlab.sim.timing import time_program
from trnlab.timeline import Timeline

if TYPE_CHECKING:
    from trnlab.nki.kernel import Kernel

_TENSOR, _TUPLE, _DICT = "tensor", "tuple", "dict"


@dataclass(frozen=True)
class PortableKernel:
    """A recorded kernel of a dialect."""

    name: str
    dialect: str
    off: tuple[str, ...]  # options of the policy that it switches off itself
    trace: Trace
    recorded_anew: bool = False  # its instructions depend on the contents of the arguments it was recorded for

    def policy(self, chip: Chip) -> Policy:
        """What the hardware's compiler is taken to make of it, here and now."""
        return chosen(chip.name, self.dialect).with_options(**dict.fromkeys(self.off, False))

    def run(self, arrays: list[HostArray], chip: Chip, options: RunOptions | None = None) -> tuple[Any, list[Array]]:
        """Execute it on copies of its arguments; returns its results, and the contents of all of its tensors."""
        trace, owned = self.trace, [replace(a, data=a.data.copy()) for a in arrays]
        memory = memory_of(trace, owned)
        machine = Machine(chip, options or RunOptions(), sbuf_bytes=trace.program.sbuf_bytes)
        run_program(trace.program, dict(enumerate(memory)), chip, machine=machine)
        return result_of(trace, memory, None), memory

    def timeline(self, chip: Chip, policy: Policy | None = None) -> Timeline:
        """When each of its instructions runs. policy: another one than its own."""
        return time_program(self.trace.program, chip, policy=policy or self.policy(chip))

    def content(self) -> bytes:
        """It as bytes, as `loads` reads them. Raises UsageError (TRN843) for results that are no tensors, numbers,
        lists and dicts."""
        metadata = {
            "name": self.name,
            "dialect": self.dialect,
            "off": list(self.off),
            "arguments": self.trace.arguments,
            "results": _plain(self.trace.results),
            "recorded_anew": self.recorded_anew,
        }
        program = replace(self.trace.program, constants=dict(self.trace.arrays))
        return b"".join(serialize.dump(program, metadata))

    def profiled(self, chip: Chip) -> Timeline:
        """Its timeline, with the counters of the vendor's profiler."""
        return with_counters(self.timeline(chip), self.trace.program, chip)


def dump(kernel: Kernel, trace: Trace, chip: Chip) -> bytes:
    """A recording as bytes. Raises UsageError (TRN843) for results that are no tensors, numbers, lists and dicts."""
    usual, own = chosen(chip.name, kernel.dialect).values(), kernel.policy(chip).values()
    off = tuple(name for name in usual if usual[name] and not own[name])
    recorded = PortableKernel(kernel.function.__name__, kernel.dialect, off, trace, trace.content is not None)
    return recorded.content()


def loads(content: bytes, chip: Chip) -> PortableKernel:
    """The recording that bytes hold, each of its routines verified: bounds, slots, formats. Raises CacheError for
    bytes that are none (TRN601), ConstraintError (TRN42x) for routines that break a rule of the chip."""
    stored = serialize.loads(content, "a recorded kernel")
    program, metadata = stored.program, stored.metadata
    verify_program(program, chip)
    try:
        results = _results(metadata["results"], len(program.tensors))
        trace = Trace(replace(program, constants={}), int(metadata["arguments"]), dict(program.constants), results)
        for result in objects_of(results, KernelResult):
            _within(result, trace)
        words = str(metadata["name"]), str(metadata["dialect"]), tuple(map(str, metadata["off"]))
        return PortableKernel(*words, trace, bool(metadata["recorded_anew"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CacheError("this is no recorded kernel", code="TRN601", got=str(error)) from error


def _plain(value: Any) -> Any:
    if isinstance(value, KernelResult):
        return {_TENSOR: [value.param, list(value.shape), list(value.strides), value.offset, str(value.format)]}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        return {_DICT: [[_plain(key), _plain(item)] for key, item in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        "a kernel's result cannot leave the process in which it was recorded",
        code="TRN843",
        got=type(value).__name__,
        limit="tensors, numbers, texts, and lists, tuples and dicts of them",
        remedy="return a tuple of tensors",
    )


def _results(value: Any, tensors: int) -> Any:
    if isinstance(value, list):
        return [_results(item, tensors) for item in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    if kind == _TUPLE:
        return tuple(_results(item, tensors) for item in content)
    if kind == _DICT:
        return {_results(key, tensors): _results(item, tensors) for key, item in content}
    param, shape, strides, offset, name = content
    if kind != _TENSOR or not 0 <= int(param) < tensors:
        raise ValueError(f"a result of tensor {param}, of {tensors}")
    return KernelResult(int(param), tuple(map(int, shape)), tuple(map(int, strides)), int(offset), format_of(name))


def _within(result: KernelResult, trace: Trace) -> None:
    """Raises ValueError for a result that reaches beyond its tensor."""
    size = trace.tensors[result.param].nbytes // result.format.dtype.itemsize
    steps = [step * (count - 1) for step, count in zip(result.strides, result.shape, strict=True)]
    first = result.offset + sum(step for step in steps if step < 0)
    last = result.offset + sum(step for step in steps if step > 0)
    if all(result.shape) and not 0 <= first <= last < size:
        raise ValueError(f"a result of elements {first} to {last}, of {size}")
