# SPDX-License-Identifier: Apache-2.0
"""Small stand-ins for what example scripts import or read only to name a device, or to find a kernel beside them."""

from __future__ import annotations

import builtins
import importlib
import io
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

PRODUCT = "/sys/devices/virtual/dmi/id/product_name"
KERNELS = {  # the compiler's package has copies of the checkout's own files under these names
    "neuronxcc.nki.kernels": "nki_samples.reference",
    "neuronxcc.nki.docs.examples": "nki_samples.tutorials",
}


def install(root: Path) -> None:
    """Everything, for files of the checkout at `root`."""
    sys.meta_path.insert(0, _Copies(root))
    _name_the_machine()
    try:
        _frameworks()
    except ModuleNotFoundError as error:
        warnings.warn(f"no stand-ins for frameworks: {error}", stacklevel=2)


class _Copies(MetaPathFinder, Loader):
    """Imports of kernels that come with the vendor's compiler find the same kernels in the checkout."""

    def __init__(self, root: Path) -> None:
        self.there = (root / "src" / "nki_samples").is_dir()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Only for those names and what is below them."""
        found = self.there and any(
            name == n or name.startswith((f"{n}.", n)) for n in (*KERNELS, "neuronxcc.nki.docs")
        )
        return ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module of the checkout."""
        for theirs, ours in KERNELS.items():
            if spec.name.startswith(f"{theirs}."):
                return importlib.import_module(ours + spec.name.removeprefix(theirs))
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the import above has run it."""


def _name_the_machine() -> None:
    """Tests ask the machine's product name whether they are on a chip; here that is the simulated one."""
    opened = builtins.open

    def look(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file) != PRODUCT:
            return opened(file, *arguments, **options)
        from trnlab.nki.target import default_chip

        return io.StringIO(f"{default_chip().name}.48xlarge\n")

    builtins.open = look


def _frameworks() -> None:
    """torch_xla and torch_neuronx, whose device is this machine's CPU."""
    import torch

    names = ("torch_xla", "torch_xla.core", "torch_xla.core.xla_model")
    xla, core, model = (module_from_spec(ModuleSpec(name, None)) for name in names)  # others ask for their specs
    members: dict[str, Any] = {
        "xla_device": lambda *_: torch.device("cpu"),
        "mark_step": lambda *_, **__: None,
        "wait_device_ops": lambda *_, **__: None,
    }
    for name, value in members.items():
        setattr(model, name, value)
    xla.device = members["xla_device"]  # type: ignore[attr-defined]
    xla.sync = members["mark_step"]  # type: ignore[attr-defined]
    xla.core, core.xla_model = core, model  # type: ignore[attr-defined]
    sys.modules |= {"torch_xla": xla, "torch_xla.core": core, "torch_xla.core.xla_model": model}
    sys.modules["torch_neuronx"] = ModuleType("torch_neuronx")
