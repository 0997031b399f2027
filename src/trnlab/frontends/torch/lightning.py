# SPDX-License-Identifier: Apache-2.0
"""Lightning finds the device: the accelerator `neuron`, which `auto` and `gpu` are where a target is chosen.

Lightning knows accelerators by a registry, and some of them by name: where it chooses what `auto` is, which device a
single process trains on, what DistributedDataParallel is told of devices, for all but the CPU have CUDA's streams
there, what may train with FullyShardedDataParallel, and which device casts in mixed precision. What is registered and
replaced here is of both its trees, `lightning` and `pytorch_lightning` with `lightning_fabric`, once they are
imported. A process has one core, so that `devices=2` starts two ranks.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from trnlab.frontends.after_import import when_imported

NAME = "neuron"
_TREES = (  # packages of accelerators with their registries, and what chooses among them
    ("lightning.fabric", "ACCELERATOR_REGISTRY", "lightning.fabric.connector", "_Connector"),
    ("lightning_fabric", "ACCELERATOR_REGISTRY", "lightning_fabric.connector", "_Connector"),
    (
        "lightning.pytorch",
        "AcceleratorRegistry",
        "lightning.pytorch.trainer.connectors.accelerator_connector",
        "_AcceleratorConnector",
    ),
    (
        "pytorch_lightning",
        "AcceleratorRegistry",
        "pytorch_lightning.trainer.connectors.accelerator_connector",
        "_AcceleratorConnector",
    ),
)

_PARALLEL = (  # which devices a replica of DistributedDataParallel is on
    ("lightning.fabric.strategies.ddp", "_determine_ddp_device_ids"),
    ("lightning_fabric.strategies.ddp", "_determine_ddp_device_ids"),
    ("lightning.pytorch.strategies.ddp", "determine_ddp_device_ids"),
    ("pytorch_lightning.strategies.ddp", "determine_ddp_device_ids"),
)

_SHARDED = (  # strategies of FullyShardedDataParallel: what they keep for it; and what casts there
    ("lightning.fabric", "_fsdp_kwargs", "plugins.precision.fsdp"),
    ("lightning_fabric", "_fsdp_kwargs", "plugins.precision.fsdp"),
    ("lightning.pytorch", "kwargs", "plugins.precision.fsdp"),
    ("pytorch_lightning", "kwargs", "plugins.precision.fsdp"),
)


def install() -> None:
    """Make it so, once Lightning is imported."""
    for package, registry, connector, name in _TREES:
        when_imported(f"{package}.accelerators", partial(_register, registry))
        when_imported(connector, partial(_choose, name))
    for strategy, method in _PARALLEL:
        when_imported(strategy, partial(_untold, method))
    for package, kept, precision in _SHARDED:
        when_imported(f"{package}.strategies.fsdp", partial(_meshed, kept))
        when_imported(f"{package}.{precision}", _cast)


def available() -> bool:
    """Whether a target is chosen for this process."""
    from trnlab.runtime import session  # much, which `import torch` alone need not load

    now = session.asked()
    return now is not None and now.chosen


def _register(registry: str, module: Any) -> None:
    getattr(module, registry).register(NAME, accelerator(module.Accelerator), description="a simulated NeuronCore")


def accelerator(base: type) -> type:
    """The accelerator, of a tree of Lightning whose class of accelerators is `base`."""

    class NeuronAccelerator(base):  # type: ignore[misc]
        """A simulated NeuronCore for each process."""

        def setup_device(self, device: torch.device) -> None:
            """Nothing: the device is there."""

        def teardown(self) -> None:
            """Nothing."""

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            """What the device counts of its memory."""
            return torch.neuron.memory_stats(device)  # type: ignore[attr-defined, no-any-return]

        @staticmethod
        def parse_devices(devices: Any) -> Any:
            """How many."""
            return len(devices) if isinstance(devices, (list, tuple)) else int(devices)

        @staticmethod
        def get_parallel_devices(devices: int) -> list[torch.device]:
            """The device of each process."""
            return [torch.device(NAME, 0)] * devices

        @staticmethod
        def auto_device_count() -> int:
            """One for each rank that was started; more are asked for by their number."""
            return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)

        @staticmethod
        def is_available() -> bool:
            """Whether a target is chosen."""
            return available()

        @staticmethod
        def name() -> str:
            """Its name in the registry."""
            return NAME

        @classmethod
        def register_accelerators(cls, accelerator_registry: Any) -> None:
            """Under its name."""
            accelerator_registry.register(NAME, cls, description="a simulated NeuronCore")

    return NeuronAccelerator


def _choose(name: str, module: Any) -> None:
    """Replace what chooses by the names of Lightning's own accelerators."""
    connector = getattr(module, name)
    connector._choose_auto_accelerator = staticmethod(_auto(connector._choose_auto_accelerator))
    connector._choose_gpu_accelerator_backend = staticmethod(_gpu(connector._choose_gpu_accelerator_backend))
    connector._choose_strategy = _strategy(connector._choose_strategy, module)
    connector._check_strategy_and_fallback = _as_a_gpu(connector._check_strategy_and_fallback)
    connector._check_and_init_precision = _mixed(connector._check_and_init_precision, module)


def _auto(others: Callable[..., str]) -> Callable[..., str]:
    @wraps(others)
    def chosen(*args: Any) -> str:
        return NAME if available() else others(*args)

    return chosen


def _gpu(others: Callable[..., str]) -> Callable[..., str]:
    """What `accelerator="gpu"` is: the chip answers where scripts ask for CUDA (ADR 181)."""

    @wraps(others)
    def chosen(*args: Any) -> str:
        from trnlab.frontends.torch.cuda import scripts
        from trnlab.frontends.torch.device import naming  # which needs the device to be registered

        if not available() or scripts.told() != "chip":
            return others(*args)
        naming.note("cuda")
        return NAME

    return chosen


def _strategy(others: Callable[[Any], Any], module: Any) -> Callable[[Any], Any]:
    @wraps(others)
    def chosen(self: Any) -> Any:
        devices = self._parallel_devices
        if len(devices) == 1 and devices[0].type == NAME and self._num_nodes_flag <= 1:
            return module.SingleDeviceStrategy(device=devices[0])
        return others(self)

    return chosen


def _untold(method: str, module: Any) -> None:
    """Replace what names the devices of a replica: there is one, which its parameters are on."""
    others = getattr(module.DDPStrategy, method)

    @wraps(others)
    def named(self: Any) -> Any:
        return None if self.root_device.type == NAME else others(self)

    setattr(module.DDPStrategy, method, named)


def _ours(connector: Any) -> bool:
    flag = connector._accelerator_flag
    return flag == NAME or (not isinstance(flag, str) and getattr(flag, "name", str)() == NAME)


def _as_a_gpu(others: Callable[[Any], None]) -> Callable[[Any], None]:
    """What may train with FullyShardedDataParallel: accelerators that Lightning calls CUDA's."""

    @wraps(others)
    def checked(self: Any) -> None:
        if not _ours(self):
            return others(self)
        flag, self._accelerator_flag = self._accelerator_flag, "cuda"
        try:
            others(self)
        finally:
            self._accelerator_flag = flag

    return checked


def _mixed(others: Callable[[Any], Any], module: Any) -> Callable[[Any], Any]:
    """What casts in mixed precision, which names CUDA for all but two accelerators."""

    @wraps(others)
    def made(self: Any) -> Any:
        with warnings.catch_warnings():  # of scales of losses on a machine without CUDA
            if _ours(self):
                warnings.simplefilter("ignore")
            chosen = others(self)
        by_name = type(chosen) is module.MixedPrecision and chosen.device == "cuda"
        return module.MixedPrecision(chosen.precision, NAME) if by_name and _ours(self) else chosen

    return made


def _meshed(kept: str, module: Any) -> None:
    """A mesh that is given as numbers of ranks is the device's."""
    others = module.FSDPStrategy.setup_environment

    @wraps(others)
    def set_up(self: Any) -> None:
        options = getattr(self, kept)
        shape = options.get("device_mesh")
        if self.root_device.type != NAME or not isinstance(shape, tuple):
            return others(self)
        options["device_mesh"] = None
        others(self)
        from torch.distributed.device_mesh import init_device_mesh

        options["device_mesh"] = init_device_mesh(NAME, shape)

    module.FSDPStrategy.setup_environment = set_up


def _cast(module: Any) -> None:
    """Forward passes of sharded models cast on the device, and their losses are scaled there."""
    casts, making = module.FSDPPrecision.forward_context, module.FSDPPrecision.__init__

    @wraps(casts)
    def forward_context(self: Any) -> Any:
        if "mixed" not in self.precision or not available():
            return casts(self)
        return torch.autocast(NAME, dtype=torch.bfloat16 if self.precision == "bf16-mixed" else torch.float16)

    @wraps(making)
    def made(self: Any, precision: str, scaler: Any = None) -> None:
        making(self, precision, scaler)
        if self.scaler is not None and available():
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            self.scaler = ShardedGradScaler(NAME)

    module.FSDPPrecision.forward_context, module.FSDPPrecision.__init__ = forward_context, made
