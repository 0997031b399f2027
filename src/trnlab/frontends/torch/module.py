# SPDX-License-Identifier: Apache-2.0
"""The module that PyTorch shows as `torch.neuron`: what its device-generic code asks of a device.

The simulated device has one queue and finishes each operator before the next begins, so streams and events are in
order by nature. Random numbers of operators that the host runs come from PyTorch's CPU generator.
"""

from __future__ import annotations

import time
from typing import Any

import torch


def is_available() -> bool:
    """Always: the device is software."""
    return True


def is_initialized() -> bool:
    """Always: there is nothing to start."""
    return True


def _is_in_bad_fork() -> bool:
    return False


def _is_compiled() -> bool:
    return True


def device_count() -> int:
    """One core; several are what `fabric` will bring."""
    return 1


def current_device() -> int:
    """Index of the device in use."""
    return 0


def set_device(device: Any) -> None:
    """Accept the only device there is; raises ValueError for any other index."""
    index = torch.device(device).index if not isinstance(device, int) else device
    if index not in (None, 0):
        raise ValueError(f"neuron:{index} does not exist: this machine simulates one device, neuron:0")


def get_device_name(device: Any = None) -> str:
    """A name for people."""
    return "simulated NeuronCore"


def synchronize(device: Any = None) -> None:
    """Return once all work is done, which it always is."""


def manual_seed(seed: int) -> None:
    """Seed the generator that operators on this device draw from."""
    torch.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Called by `torch.manual_seed`, which has already seeded the generator in question."""


def get_rng_state(device: Any = "neuron") -> torch.Tensor:
    """State of the generator that operators on this device draw from."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = "neuron") -> None:
    """Put back a state read by `get_rng_state`."""
    torch.set_rng_state(state)


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


class Event:
    """A point in the queue. Timings between two of them are the host's, not the chip's."""

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


class Stream:
    """The queue of the device; every stream is the same one."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = torch.device("neuron", 0)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def synchronize(self) -> None:
        """Work is done already."""

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def wait_stream(self, other: Stream) -> None:
        """Work is in order already."""

    def wait_event(self, event: Event) -> None:
        """Work is in order already."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a new one, and return it."""
        event = event or Event()
        event.record()
        return event


def current_stream(device: Any = None) -> Stream:
    """The stream in use."""
    return Stream()


def stream(chosen: Stream | None) -> Stream:
    """Context manager that selects a stream."""
    return chosen or Stream()
