# SPDX-License-Identifier: Apache-2.0
"""torch_xla.core.xla_model: one device for each rank, steps, and collectives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from trnlab.frontends.torch.xla import naming, ranks
from trnlab.frontends.torch.xla.arena import (
    ToXlaTensorArena,
    _maybe_convert_to_cpu,
    on_device,
    send_cpu_data_to_device,
)
from trnlab.frontends.torch.xla.collectives import (
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    _fetch_gradients,
    all_gather,
    all_gather_bucketized,
    all_reduce,
    all_reduce_bucketized_gradients,
    all_to_all,
    broadcast_master_param,
    collective_broadcast,
    collective_permute,
    do_on_ordinals,
    is_master_ordinal,
    mesh_reduce,
    reduce_gradients,
    reduce_scatter,
    reduce_scatter_bucketized,
    rendezvous,
    xla_rendezvous,
)
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.steps import add_step_closure, mark_step, wait_device_ops

__all__ = [
    "REDUCE_AND",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_OR",
    "REDUCE_SUM",
    "RateTracker",
    "ToXlaTensorArena",
    "_fetch_gradients",
    "_maybe_convert_to_cpu",
    "add_step_closure",
    "all_gather",
    "all_gather_bucketized",
    "all_reduce",
    "all_reduce_bucketized_gradients",
    "all_to_all",
    "broadcast_master_param",
    "collective_broadcast",
    "collective_permute",
    "do_on_ordinals",
    "fork_rng",
    "get_local_ordinal",
    "get_memory_info",
    "get_ordinal",
    "get_rng_state",
    "get_xla_supported_devices",
    "is_master_ordinal",
    "is_xla_tensor",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "optimization_barrier_",
    "optimizer_step",
    "reduce_gradients",
    "reduce_scatter",
    "reduce_scatter_bucketized",
    "rendezvous",
    "save",
    "send_cpu_data_to_device",
    "set_replication",
    "set_rng_state",
    "unlazy",
    "wait_device_ops",
    "xla_device",
    "xla_device_hw",
    "xla_device_kind",
    "xla_real_devices",
    "xla_rendezvous",
    "xrt_world_size",
]
is_xla_tensor = on_device


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The simulated device of this rank; there is one, whatever n is."""
    return naming.device()


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str]:
    """The one there is."""
    return [str(xla_device())]


def xla_real_devices(devices: Any = None) -> list[str]:
    """The name of this rank's core."""
    return [f"NEURON:{ranks.ordinal()}"]


def xla_device_hw(device: Any) -> str:
    """What kind of device it is."""
    return "CPU" if torch.device(device).type == "cpu" else "NEURON"


xla_device_kind = xla_device_hw


def set_replication(device: Any, devices: Any) -> None:
    """Nothing: the ranks are those that were started."""


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Have the values of tensors."""
    mark_step()


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Nothing: what is computed again is not merged with what was computed before."""


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: ranks.Groups = None,
    pin_layout: bool = True,
) -> Any:
    """Gradients become the means over all ranks, then optimizer.step(); with `barrier` the step ends here."""
    reduce_gradients(optimizer, groups)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return loss


def get_ordinal(defval: int = 0) -> int:
    """Which rank this is."""
    return ranks.ordinal()


def get_local_ordinal(defval: int = 0) -> int:
    """Which of this machine's ranks it is."""
    return ranks.local_ordinal()


def xrt_world_size(defval: int = 1) -> int:
    """How many ranks there are."""
    return ranks.world_size()


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """print(), by the first rank."""
    if is_master_ordinal(local):
        print(*args, file=fd, flush=flush)


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """torch.save() of tensors that were moved to the host, by the first rank of each machine or of all."""
    writes = not master_only or is_master_ordinal(local=not global_master)
    on_host = _maybe_convert_to_cpu(data, writes)
    if writes:
        torch.save(on_host, file_or_path)


def set_rng_state(seed: int, device: Any = None) -> None:
    """Seed PyTorch's generators."""
    torch.manual_seed(int(seed))


def get_rng_state(device: Any = None) -> int:
    """The seed of PyTorch's generator."""
    return torch.initial_seed()


@contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """Draws of the block do not change those that come after it."""
    with torch.random.fork_rng(devices=[0], enabled=enabled, device_type="neuron"):
        yield


def get_memory_info(device: Any = None) -> dict[str, int]:
    """The device's memory, by torch_xla's names: bytes in use, of how many, and the most that were."""
    free, total = torch.neuron.mem_get_info()  # type: ignore[attr-defined]
    peak = torch.neuron.max_memory_allocated()  # type: ignore[attr-defined]
    return {"bytes_used": total - free, "bytes_limit": total, "peak_bytes_used": peak}


class RateTracker:
    """Counts of something per second, by the host's clock."""

    def __init__(self, smooth_factor: float = 0.4) -> None:
        self._smooth, self._count, self._rate = smooth_factor, 0.0, 0.0
        self._start = self._last = time.monotonic()
        self._counted = 0.0

    def add(self, count: float) -> None:
        """Count some."""
        self._count += count

    def rate(self) -> float:
        """Per second since it was asked before, smoothed."""
        now = time.monotonic()
        if now > self._last:
            fresh = (self._count - self._counted) / (now - self._last)
            self._rate = fresh if not self._counted else self._rate * self._smooth + fresh * (1 - self._smooth)
            self._last, self._counted = now, self._count
        return self._rate

    def global_rate(self) -> float:
        """Per second since the beginning."""
        return self._count / max(time.monotonic() - self._start, 1e-9)


_REFUSED: dict[str, str] = {
    "send": "torch.distributed.send and recv, or xm.collective_permute",
    "recv": "torch.distributed.send and recv, or xm.collective_permute",
    "xla_replication_devices": "there is one device for each rank",
    "get_stablehlo": "trnlab run --emit-stablehlo writes the modules of compiled steps",
    "get_stablehlo_bytecode": "trnlab run --emit-stablehlo writes the modules of compiled steps",
}
Closure = Callable[..., Any]
__getattr__ = refusing(
    "torch_xla.core.xla_model", "there are the device, steps and collectives of ranks", _REFUSED, __all__
)
