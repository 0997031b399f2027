# SPDX-License-Identifier: Apache-2.0
"""What a `StateSnapshot` of Python state must know of PyTorch, and PyTorch's own state that a trace depends on."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution, Transform
from torch.nn.modules import module as nn_module

import trnlab
from trnlab.frontends.torch.distributed.environment import job_environment
from trnlab.frontends.torch.pytorch.dispatcher import is_traceable_wrapper_subclass
from trnlab.frontends.torch.pytorch.fakes import FakeTensor
from trnlab.frontends.torch.sparse import parts as sparse
from trnlab.guards.nodes import (
    EVERY,
    AttributesNode,
    BuiltinNode,
    ItemsNode,
    MentionedNames,
    StateNode,
    SummaryNode,
    TensorAttributesNode,
)
from trnlab.guards.state_snapshot import StateSnapshot
from trnlab.nki.kernel import Kernel

# Numba is looked for and not imported: a process that finds all loops compiled does without it.
_PACKAGES = (find_spec(name) for name in ("torch", "trnlab", "numpy", "numba", "llvmlite"))
_FIXED = tuple(f"{Path(str(spec.origin)).parent}/" for spec in _PACKAGES if spec is not None)
_NAMES_ONLY = tuple(f"{Path(str(torch.__file__)).parent}/{part}/" for part in ("nn", "optim", "amp"))
_AVERAGES = f"{Path(trnlab.__file__).parent}/frontends/torch/running_averages.py"  # in the place of PyTorch's code
_STANDARD = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib"))
_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo)
# Looked after by the step itself; the last is set by it and by learning rate schedulers, which alone read it.
_OPTIMIZERS_OWN = frozenset({"state", "param_groups", "defaults", "_opt_called"})
_TABLES = frozenset({"_parameters", "_buffers", "_modules"})
_NOT_READ = frozenset({"_flat_weight_refs"})  # weak references to the parameters, by which a layer knows them
_TRAINED = frozenset({"_parameters"})
_TRAINED_RECURRENT = _TRAINED | {"_flat_weights", "_flat_weight_refs"}  # the parameters again
_GENERATED = ("<frozen", "<eval_with_key", "<__array_function__")


# Keras's layers are PyTorch's modules on that backend: its code, too, reads attributes of what users made.
_KERAS = f"{os.sep}site-packages{os.sep}keras{os.sep}src{os.sep}"


@lru_cache(maxsize=4096)
def _library(file: str) -> bool:
    if file.startswith((*_FIXED, *_GENERATED)) or _KERAS in file:
        return True
    return file.startswith(_STANDARD) and "/site-packages/" not in file


class _Children(ItemsNode):
    """The modules, parameters or buffers in a module, which people reach by name."""

    def at(self, key: Any) -> str:
        parent = self.label.rpartition(".")[0]
        return f"{parent}[{key}]" if str(key).isdigit() else f"{parent}.{key}"


class TorchState:
    """A `guards.state_snapshot.Framework`.

    trained: modules whose parameters and buffers the step looks after. Those of all others are tensors that hang on
    Python state, as any tensor in a dictionary.
    """

    def __init__(self, trained: Iterable[nn.Module] = ()) -> None:
        self._trained = {id(m): m for m in trained}
        self._children: dict[int, Any] = {}
        self._buffers: dict[int, Any] = {}

    def library(self, file: str) -> bool:
        """See `Framework`."""
        return _library(file)

    def names_only(self, file: str) -> bool:
        """See `Framework`."""
        return file.startswith((*_NAMES_ONLY, _AVERAGES)) or _KERAS in file

    def is_tensor(self, value: Any) -> bool:
        """See `Framework`."""
        return isinstance(value, torch.Tensor)

    def is_traced(self, value: Any) -> bool:
        """See `Framework`."""
        return isinstance(value, FakeTensor) or (sparse.is_sparse(value) and sparse.is_traced(value))

    def is_value(self, value: Any) -> bool:
        """See `Framework`."""
        return isinstance(value, _VALUES)

    def node(self, value: Any, label: str, names: MentionedNames) -> StateNode | None:
        """See `Framework`."""
        if isinstance(value, nn.Module):
            names.names |= _TABLES  # which PyTorch's own code reads as `self.__dict__[name]`
            self._children[id(value._modules)] = value._modules
            if id(value) not in self._trained:
                self._children |= {id(table): table for table in (value._parameters, value._buffers)}
                return AttributesNode(value, label, names, _NOT_READ)
            self._buffers[id(value._buffers)] = value._buffers
            return AttributesNode(
                value, label, names, _TRAINED_RECURRENT if isinstance(value, nn.RNNBase) else _TRAINED
            )
        if isinstance(value, torch.Tensor):
            return None if is_traceable_wrapper_subclass(value) else TensorAttributesNode(value, label, names)
        if isinstance(value, (Distribution, Transform)):
            return AttributesNode(value, label, EVERY)
        if id(value) in self._children:
            return _Children(value, label)
        if id(value) in self._buffers:
            held = frozenset(k for k, v in value.items() if v is not None)
            return ItemsNode(value, label, held.__contains__)
        if isinstance(value, torch.optim.Optimizer):
            return AttributesNode(value, label, names, _OPTIMIZERS_OWN)
        if isinstance(value, torch.Generator):
            return SummaryNode(value, label, lambda g: bytes(g.get_state().tolist()))
        return BuiltinNode(value, label, {"function": ""}) if isinstance(value, Kernel) else None


def visit_hooks(snapshot: StateSnapshot) -> None:
    """Hooks that apply to all modules."""
    for name, table in vars(nn_module).items():
        if name.startswith("_global_") and isinstance(table, dict):
            snapshot.visit(table, name)


def ambient() -> Mapping[str, Hashable]:
    """PyTorch's switches that decide what an operator does, and what operators of several ranks read."""
    found: dict[str, Hashable] = {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": torch.get_default_device(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
    }
    for device in ("neuron", "cpu"):
        enabled = torch.is_autocast_enabled(device)
        found[f"autocast of {device!r}"] = torch.get_autocast_dtype(device) if enabled else "off"
    return found | job_environment()
