# SPDX-License-Identifier: Apache-2.0
"""The samples of PyTorch's operator database, each as a function of a flat list of tensors.

A sample is an input, arguments and keyword arguments. The tensors in them are taken out, so that the same sample runs
on the CPU, on `neuron`, and on fake tensors while a graph is being captured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float32",
        "bfloat16",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "float64",
        "complex64",
    )
}
REFUSED_DTYPES = (torch.float64,)  # what a compiled program must refuse by name

# Results that are memory as it was found: only their shape and dtype mean something.
UNINITIALISED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}


@cache
def database() -> dict[str, Any]:
    """The operators of `op_db` by name, variants included ("linalg.norm.subgradients_at_zero")."""
    return {op.formatted_name: op for op in operators()}


def operators() -> list[Any]:
    """`op_db`. Before it makes samples PyTorch looks through the stack, with the source of each frame, for the method
    of a TestCase that asks: nine tenths of the time that they take. Nobody here is one, so that it finds none."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

    for module in (common_utils, core):
        module.extract_test_fn = lambda: None
    return list(op_db)


# Results that the CPU leaves empty where its other devices return what their backward pass will read.
LEFT_EMPTY = {"native_batch_norm": (1, 2), "_native_batch_norm_legit": (1, 2)}

# PyTorch wants these operators' index tensors on the CPU, whatever the device of the data.
_HOST_ARGUMENTS = {"tensor_split"}


def is_random(op: Any) -> bool:
    """Whether values mean nothing: memory as it was found, or numbers of a generator that the database seeds."""
    code = getattr(op.op, "__code__", None)
    return op.name in UNINITIALISED or (code is not None and "wrapper_set_seed" in code.co_names)


def supports(op: Any, dtype: torch.dtype) -> bool:
    """Whether PyTorch on the CPU has this operator for this dtype."""
    return bool(op.supports_dtype(dtype, "cpu"))


@dataclass(eq=False)
class Sample:
    """One call of an operator; `tensors` are those of its arguments, in order."""

    op: Any
    leaves: list[Any]
    spec: Any
    finish: Callable[..., Any]
    dtype: torch.dtype

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return [x for i, x in enumerate(self.leaves) if self._moves(i)]

    def _moves(self, index: int) -> bool:
        """Whether a leaf is a tensor that lies on the device."""
        return isinstance(self.leaves[index], Tensor) and (index == 0 or self.op.name not in _HOST_ARGUMENTS)

    @cached_property
    def digest(self) -> str:
        """Equal for samples that would run the same code on the same values."""
        digest = hashlib.sha256(f"{self.op.formatted_name} {self.dtype} {self.spec}".encode())
        for leaf in self.leaves:
            if isinstance(leaf, Tensor):
                digest.update(f"{leaf.dtype}{tuple(leaf.shape)}{leaf.requires_grad}{leaf.layout}".encode())
                if leaf.layout is torch.strided:
                    digest.update(f"{leaf.stride()}{leaf.storage_offset()}".encode())
                    digest.update(
                        leaf.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                    )
                else:
                    digest.update(str(leaf).encode())
            else:
                digest.update(repr(leaf).encode())
        return digest.hexdigest()[:16]

    def call(self, tensors: Sequence[Tensor], device: str) -> list[Any]:
        """The operator's results, flat, for these tensors in the place of the sample's."""
        given = iter(tensors)
        leaves = [next(given) if self._moves(i) else _on(x, device) for i, x in enumerate(self.leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs["device"] = device
        result = self.op(*args, **kwargs)
        return pytree.tree_leaves(self.finish(result))

    def __str__(self) -> str:
        return ", ".join(map(_brief, self.leaves))[:160]


def _on(leaf: Any, device: str) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device(device)
    return device if isinstance(leaf, str) and leaf == "cpu" else leaf


def _as_elsewhere(leaf: Any, dtype: torch.dtype) -> Any:
    """PyTorch decides by the name of the device in what format some losses are summed; the same for both, as it
    decides for a device that it has no name for."""
    return replace(leaf, acc_policy="compact", acc_dtype=dtype) if getattr(leaf, "acc_policy", "") == "auto" else leaf


def _brief(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    strided = "" if leaf.layout is not torch.strided or leaf.is_contiguous() else f" strides {list(leaf.stride())}"
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{strided}"


def samples(op: Any, dtype: torch.dtype, count: int | None, reference: bool = False) -> Iterator[Sample]:
    """The first `count` distinct samples of an operator (None: all), with its reference inputs too if asked."""
    torch.manual_seed(0)
    backward = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    make = op.reference_inputs if reference else op.sample_inputs
    known: set[str] = set()
    for sample in islice(make("cpu", dtype, requires_grad=backward), None if count is None else 4 * count):
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        found = Sample(op, [_as_elsewhere(x, dtype) for x in leaves], spec, sample.output_process_fn_grad, dtype)
        if found.digest not in known:
            known.add(found.digest)
            yield found
        if len(known) == count:
            return


def leaves_of(sample: Sample, device: str, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The sample's tensors anew on a device, as leaves of autograd; float ones as `dtype` if one is given, and
    complex ones as pairs of that."""
    made = []
    for x in sample.tensors:
        y = x.detach()
        if dtype is not None and y.is_floating_point():
            y = y.to(dtype)
        elif dtype is not None and y.is_complex():
            y = y.to(dtype.to_complex())
        y = _same_layout(y) if device == "cpu" else _same_layout(y).to(device)
        made.append(y.requires_grad_(x.requires_grad))
    return made


def _same_layout(x: Tensor) -> Tensor:
    """A copy with the same strides, overlapping ones included."""
    if x.layout is not torch.strided or x.is_contiguous():
        return x.clone()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) if _dense(x) else x.clone()


def _dense(x: Tensor) -> bool:
    return bool(torch._prims_common.is_non_overlapping_and_dense(x))


def gradients(outputs: Sequence[Any], leaves: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of the outputs' sum, weighted, by each leaf that wants one; `weights` are those of `weights_for`."""
    wanted = [x for x in leaves if x.requires_grad]
    parts = differentiable(outputs)
    if not wanted or not parts:
        return []
    return list(torch.autograd.grad(parts, wanted, list(weights), allow_unused=True))


def differentiable(outputs: Sequence[Any]) -> list[Tensor]:
    """The outputs that a gradient goes through."""
    return [
        o for o in outputs if isinstance(o, Tensor) and o.requires_grad and (o.is_floating_point() or o.is_complex())
    ]


def weights_for(outputs: Sequence[Any]) -> list[Tensor]:
    """One gradient per differentiable output: multiples of 1/64 from 1/2 to 3/2, exact in every format; of a complex
    output in both parts."""
    return [_weights(o) for o in differentiable(outputs)]


def _weights(x: Tensor) -> Tensor:
    if x.is_complex():
        return torch.view_as_complex(_weights(torch.view_as_real(x.detach().resolve_conj().contiguous())))
    count = torch.arange(x.numel(), dtype=torch.int32).mul(37).remainder(64)
    return (0.5 + count.to(torch.float32) / 64).reshape(x.shape).to(x.dtype)
