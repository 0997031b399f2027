# SPDX-License-Identifier: Apache-2.0
"""torch_xla.core.xla_model: one device, one process, nothing that waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trnlab.frontends.torch.xla.names import refusing

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The simulated device; there is one, whatever n is."""
    return torch.device("neuron")


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str]:
    """The one there is."""
    return [str(xla_device())]


def xla_device_hw(device: Any) -> str:
    """What kind of device it is."""
    return "NEURON"


# -- steps: nothing is lazy here ----------------------------------------------------------------------------------
def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Nothing: operators have run already."""


def wait_device_ops(devices: Sequence[Any] = ()) -> None:
    """Nothing: operators have run already."""


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """Call it, for the step is done."""
    closure(*args)


def optimizer_step(
    optimizer: torch.optim.Optimizer, barrier: bool = False, optimizer_args: dict[str, Any] | None = None, **_: Any
) -> Any:  # fmt: skip
    """optimizer.step(): gradients of one process are those of all."""
    return optimizer.step(**(optimizer_args or {}))


# -- one process --------------------------------------------------------------------------------------------------
def get_ordinal(defval: int = 0) -> int:
    """Zero."""
    return 0


get_local_ordinal = get_ordinal


def xrt_world_size(defval: int = 1) -> int:
    """One."""
    return 1


def is_master_ordinal(local: bool = True) -> bool:
    """Always."""
    return True


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """print()."""
    print(*args, file=fd, flush=flush)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """The only process is there."""
    return [payload]


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None, **_: Any) -> Any:
    """What was given, times scale; a list is changed in place and nothing returned."""
    if isinstance(inputs, torch.Tensor):
        return inputs if scale == 1.0 else inputs * scale
    for tensor in inputs:
        tensor.mul_(scale)
    return None


def all_gather(value: torch.Tensor, dim: int = 0, groups: Any = None, **_: Any) -> torch.Tensor:
    """What was given."""
    return value


def reduce_scatter(reduce_type: str, value: torch.Tensor, scale: float, *_: Any, **__: Any) -> torch.Tensor:
    """What was given, times scale."""
    return value * scale


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Any = None, **_: Any) -> None:
    """Nothing: gradients of one process are those of all."""


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """reduce_fn of one value."""
    return reduce_fn([data])


# -- the rest -----------------------------------------------------------------------------------------------------
def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """torch.save()."""
    torch.save(data, file_or_path)


def set_rng_state(seed: int, device: Any = None) -> None:
    """Seed PyTorch's generators."""
    torch.manual_seed(int(seed))


def get_rng_state(device: Any = None) -> int:
    """The seed of PyTorch's generator."""
    return torch.initial_seed()


__getattr__ = refusing("torch_xla.core.xla_model", "there is one process, whose operators run at once")
