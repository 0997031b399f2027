# SPDX-License-Identifier: Apache-2.0
"""The module that PyTorch shows as `torch.neuron`: what its device-generic code asks of a device.

The simulated device has one queue and finishes each operator before the next begins, so streams and events are in
order by nature. Random numbers of operators that the host runs come from PyTorch's CPU generator.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from trnlab.frontends.torch.device.numbers import local_ranks, only_index
from trnlab.hbm import HBM
from trnlab.units import format_bytes


def is_available() -> bool:
    """Always: the device is software."""
    return True


def is_initialized() -> bool:
    """Always: there is nothing to start."""
    return True


def init() -> None:
    """Nothing: there is nothing to start."""


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return False


def _is_compiled() -> bool:
    return True


# -- devices --------------------------------------------------------------------------------------------------------


def device_count() -> int:
    """One core for each process: a model runs on one NeuronCore."""
    return local_ranks()


def current_device() -> int:
    """Index of the device in use."""
    return 0


def _get_device_index(device: Any = None, optional: bool = False, allow_cpu: bool = False) -> int:
    """Index of a device; raises UsageError for any other than this process's."""
    return only_index(device if isinstance(device, int) or device is None else torch.device(device).index)


def set_device(device: Any) -> None:
    """Accept the device of this process; raises UsageError for any other index."""
    _get_device_index(device)


set_device_index = set_device


def can_device_access_peer(device: Any, peer: Any) -> bool:
    """There is no other device."""
    return False


@dataclass(frozen=True)
class DeviceProperties:
    """What there is to know of the device; `total_memory` is the HBM of one core in bytes."""

    name: str
    total_memory: int
    multi_processor_count: int = 1


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name and memory of the simulated core; without a target the memory is that of kernels' default chip."""
    _get_device_index(device)
    from trnlab.runtime import session  # takes a while

    return DeviceProperties(get_device_name(), int(session.kernel_chip().hbm.capacity_bytes))


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """Nothing is promised: what runs on the chip is what compiles."""
    return {}


def get_device_name(device: Any = None) -> str:
    """A name for people."""
    return "simulated NeuronCore"


def synchronize(device: Any = None) -> None:
    """Return once all work is done, which it always is."""


# -- memory: that of the simulated HBM; tensors lie in the host's, which PyTorch's CPU allocator keeps ---------------


def empty_cache() -> None:
    """Nothing: freed memory goes back to the host at once."""


def ipc_collect() -> None:
    """Nothing: tensors are not shared between processes by handles."""


def memory_allocated(device: Any = None) -> int:
    """Bytes of HBM that the tensors on the device take now, in their formats on the chip."""
    return HBM.bytes


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes of HBM that were in use, with what programs need while they run, since
    `reset_peak_memory_stats`."""
    return HBM.peak_bytes


def memory_stats(device: Any = None) -> dict[str, int]:
    """Bytes in use, by PyTorch's names for them; what is allocated is what is reserved."""
    now, peak = HBM.bytes, HBM.peak_bytes
    return {
        f"{what}_bytes.all.{when}": size
        for what in ("allocated", "reserved")
        for when, size in (("current", now), ("peak", peak))
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Bytes in use now and at most, in one line."""
    total = get_device_properties(device).total_memory
    now, peak = format_bytes(HBM.bytes), format_bytes(HBM.peak_bytes)
    return f"{now} of {format_bytes(total)} of HBM in use, at most {peak}"


def reset_peak_memory_stats(device: Any = None) -> None:
    """The most that was in use is what is in use now."""
    HBM.reset()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of HBM of one core, between programs."""
    total = get_device_properties(device).total_memory
    return max(total - HBM.bytes, 0), total


memory_reserved = memory_cached = memory_allocated
max_memory_reserved = max_memory_cached = max_memory_allocated
reset_accumulated_memory_stats = reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats
get_memory_info = mem_get_info

# -- random numbers -------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the generator that operators on this device draw from."""
    torch.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Called by `torch.manual_seed`, which has already seeded the generator in question."""


def seed() -> None:
    """Seed the generator with a number that nobody chose."""
    torch.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """What the generator was seeded with."""
    return torch.initial_seed()


def get_rng_state(device: Any = "neuron") -> torch.Tensor:
    """State of the generator that operators on this device draw from."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = "neuron") -> None:
    """Put back a state read by `get_rng_state`."""
    torch.set_rng_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices: one."""
    return [get_rng_state()]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    """Put back what `get_rng_state_all` read."""
    set_rng_state(states[0])


# -- formats, streams, events ---------------------------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types that `torch.autocast("neuron")` may lower to."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """The PE array takes bf16 at full rate."""
    return True


class device:
    """Context manager that selects a device; there is one."""

    def __init__(self, index: Any) -> None:
        set_device(index if isinstance(index, int) else torch.device(index))

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


class Event(torch.Event):
    """A point in the queue. Timings between two of them are the host's, not the chip's.

    To PyTorch's C++, whose streams read events without asking what they are, it is one that was never recorded.
    """

    def __new__(cls, device: Any = None, enable_timing: bool = False, **kwargs: Any) -> Event:
        """An event of the only device."""
        return super().__new__(cls, device="neuron")  # type: ignore[return-value]

    def __init__(self, device: Any = None, enable_timing: bool = False, **kwargs: Any) -> None:
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Mark the present moment."""
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Work is in order already."""

    def query(self) -> bool:
        """Whether all work before the event is done."""
        return True

    def synchronize(self) -> None:
        """Work is done already."""

    def elapsed_time(self, end: Event) -> float:
        """Host milliseconds from this event to `end`; both must have been recorded."""
        if self._time is None or end._time is None:
            raise RuntimeError("both events must be recorded before the time between them is asked for")
        return 1e3 * (end._time - self._time)


class Stream(torch.Stream):
    """The queue of the device; all streams are in order with each other."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        """A stream of the only device."""
        _get_device_index(device)
        return super().__new__(cls, device="neuron", priority=priority)  # type: ignore[return-value]

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def synchronize(self) -> None:
        """Work is done already."""

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def wait_stream(self, other: Any) -> None:
        """Work is in order already."""

    def wait_event(self, event: Any) -> None:
        """Work is in order already."""

    def record_event(self, event: Any = None) -> Any:
        """Record `event`, or a new one, and return it."""
        event = event or Event()
        event.record()
        return event


def current_stream(device: Any = None) -> Stream:
    """The stream in use."""
    return Stream(device)


default_stream = current_stream


def set_stream(stream: Any) -> None:
    """Nothing: every stream is in order with every other."""


def stream(chosen: Stream | None) -> Stream:
    """Context manager that selects a stream."""
    return chosen or Stream()


StreamContext = stream


def is_current_stream_capturing() -> bool:
    """Never: there are no graphs of streams."""
    return False
