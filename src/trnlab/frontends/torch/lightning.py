# SPDX-License-Identifier: Apache-2.0
"""Lightning finds the device: the accelerator `neuron`, which `auto` is where a target is chosen.

Lightning knows accelerators by a registry, and some of them by name: where it chooses what `auto` is, which device a
single process trains on, and what DistributedDataParallel is told of devices, for all but the CPU have CUDA's streams
there. What is registered and replaced here is of both its trees, `lightning` and `pytorch_lightning` with
`lightning_fabric`, once they are imported. A process has one core, so that `devices=2` starts two ranks.
"""

from __future__ import annotations

import os
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


def install() -> None:
    """Make it so, once Lightning is imported."""
    for package, registry, connector, name in _TREES:
        when_imported(f"{package}.accelerators", partial(_register, registry))
        when_imported(connector, partial(_choose, name))
    for strategy, method in _PARALLEL:
        when_imported(strategy, partial(_untold, method))


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
    connector._choose_strategy = _strategy(connector._choose_strategy, module)


def _auto(others: Callable[..., str]) -> Callable[..., str]:
    @wraps(others)
    def chosen(*args: Any) -> str:
        return NAME if available() else others(*args)

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
