# SPDX-License-Identifier: Apache-2.0
"""torch_xla: the device under its older name."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trnlab.frontends.torch.xla import binary, distributed, naming, processes, ranks
from trnlab.frontends.torch.xla.model import xla_device, xla_real_devices
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.runtime import device_type
from trnlab.frontends.torch.xla.steps import mark_step
from trnlab.frontends.vendor_imports import VERSION

__all__ = [
    "_XLAC",
    "compile",
    "device",
    "device_count",
    "devices",
    "launch",
    "manual_seed",
    "real_devices",
    "step",
    "sync",
]
__version__ = VERSION

device, sync, real_devices, _XLAC = xla_device, mark_step, xla_real_devices, binary


@contextmanager
def step() -> Iterator[None]:
    """A block that is a step."""
    mark_step()
    try:
        yield
    finally:
        mark_step()


def compile(
    f: Callable[..., Any] | None = None, full_graph: bool | None = False, name: str | None = None, **_: Any
) -> Any:
    """A function whose calls are steps; without one, a block that is a step."""
    if f is None:
        return step()

    @functools.wraps(f)
    def stepping(*args: Any, **named: Any) -> Any:
        with step():
            return f(*args, **named)

    return stepping


def devices() -> list[torch.device]:
    """The one there is."""
    return [xla_device()]


def device_count() -> int:
    """How many ranks there are, with one each."""
    return ranks.world_size()


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """fn(rank, *args) in a process for each rank, as `xmp.spawn`."""
    processes.spawn(fn, args, 1 if debug_single_process else None, start_method=start_method)


def manual_seed(seed: int, device: Any = None) -> None:
    """Seed PyTorch's generators."""
    torch.manual_seed(seed)


os.environ.setdefault("PJRT_DEVICE", device_type())  # as the vendor's plug-in does, by which libraries know it
naming.install()
distributed.register()

__getattr__ = refusing(
    "torch_xla",
    "there are the device, steps, ranks and their collectives",
    ("set_custom_compile_options", "customized_name", "stablehlo"),
    __all__,
)
