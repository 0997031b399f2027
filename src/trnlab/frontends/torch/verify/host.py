# SPDX-License-Identifier: Apache-2.0
"""The same script on the host: what PyTorch itself makes of it, operator by operator, without compiling anything.

Tensors stay on `neuron`, whose operators the host computes with PyTorch's own kernels, so the script need not know.
The chip's random numbers are taken over in the order in which it drew them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trnlab.frontends.common.engine import InterpreterEngine
from trnlab.frontends.torch.device.dlpack import as_neuron
from trnlab.frontends.torch.draws import new_seed
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.verify.steps import StepCounter
from trnlab.verify.bounds import roundoff

PRODUCTS = frozenset(
    {
        F.linear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.scaled_dot_product_attention,
        F.bilinear,
        torch.matmul,
        torch.mm,
        torch.bmm,
        torch.addmm,
        torch.baddbmm,
        torch.einsum,
        torch.mv,
        Tensor.matmul,
        Tensor.mm,
        Tensor.bmm,
        Tensor.__matmul__,
        Tensor.__rmatmul__,
        Tensor.addmm,
        Tensor.baddbmm,
    }
)
_DROPOUT = (F.dropout, torch.dropout)


class HostEngine(InterpreterEngine):
    """Runs steps as PyTorch does. `times`: what the chip said when the script had steps timed, in order."""

    def __init__(self, steps: StepCounter, times: Sequence[float]) -> None:
        self.steps, self._times = steps, list(times)

    def train_step(self, step: Any, batch: Sequence[Any]) -> Any:
        """One step of a `TrainStep`: forward, backward, clipping, update. `.grad` is left as it was."""
        parameters = list(step.model.parameters())
        kept = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        try:
            loss_fn = step.loss_fn or (lambda model, *batch: model(*batch))
            result = loss_fn(step.model, *batch)
            loss = result[0] if isinstance(result, tuple | list) else result
            torch.autograd.backward(loss)
            if step.max_norm is not None:
                nn.utils.clip_grad_norm_(parameters, step.max_norm)
            step.optimizer.step()
        finally:
            for p, grad in zip(parameters, kept):
                p.grad = grad
        self.steps.done(float(loss.detach()))
        return pytree.tree_map_only(Tensor, Tensor.detach, result)

    def step_time(self, measured: Callable[[], float]) -> float:
        """What the chip needed for this trial."""
        return self._times.pop(0) if self._times else measured()


class Replayed(TorchFunctionMode):
    """Within, dropout drops what it dropped on the chip. `missing`: calls for which the chip drew nothing like it.

    For all the random numbers of a step the chip draws one seed from the host's generator; so does this.
    """

    def __init__(self, drawn: Sequence[Tensor], steps: StepCounter) -> None:
        super().__init__()
        self._drawn, self._steps, self._seeded = list(drawn), steps, 0
        self._none = not drawn
        self.missing = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        kwargs = kwargs or {}
        if function in _DROPOUT:
            return self._dropout(function, *args, **kwargs)
        return function(*args, **kwargs)

    def _dropout(self, function: Any, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0:
            return x
        if self._none:  # recorded operators draw from the host's generator, as this does
            return function(x, p, training, inplace)
        if not self._drawn or tuple(self._drawn[0].shape) != tuple(x.shape):
            self.missing += 1
            return function(x, p, training, inplace)
        mask = self._drawn.pop(0)
        if self._seeded != self._steps.number:
            self._seeded = self._steps.number
            new_seed()
        kept = (mask != 0).to(torch.float32) / max(1 - p, 1e-9)
        return x * as_neuron(kept.contiguous()) if x.device.type == "neuron" else x * kept


class Perturbed(TorchFunctionMode):
    """Within, rounding's errors are thrown in at random: what matrix products read changes by up to u of the format
    that the PE array reads, every other result by up to u(float32)."""

    def __init__(self, format: str, seed: int) -> None:
        super().__init__()
        self._read = roundoff(format)
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        kwargs = kwargs or {}
        if function in PRODUCTS:
            args = tuple(self._changed(a, self._read) if isinstance(a, Tensor) else a for a in args)
            result = function(*args, **kwargs)
            if isinstance(result, Tensor) and result.requires_grad:
                result.register_hook(lambda grad: self._changed(grad, self._read))
            return result
        result = function(*args, **kwargs)
        if not isinstance(result, Tensor) or not torch.is_grad_enabled() or any(result is a for a in args):
            return result
        fresh = not result._is_view() and result.requires_grad and not result.is_leaf
        return self._changed(result, roundoff("float32")) if fresh else result

    def _changed(self, x: Tensor, u: float) -> Tensor:
        if x.dtype is not torch.float32:
            return x
        noise = 1 + u * (2 * torch.rand(x.shape, generator=self._generator) - 1)
        return x * (as_neuron(noise) if x.device.type == "neuron" else noise)


_AS_THEY_ARE = frozenset(
    {
        "__get__",
        "__set__",
        "__setitem__",
        "detach",
        "backward",
        "register_hook",
        "requires_grad_",
        "to",
        "float",
        "item",
    }
)


class Widened(TorchFunctionMode):
    """Within, operators compute in float64; what is stored (parameters, the optimizer's state) stays in float32."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        if not torch.is_grad_enabled() or in_place or name in _AS_THEY_ARE:
            return function(*args, **kwargs)
        if not any(isinstance(a, Tensor) and (a.requires_grad or a.dtype is torch.float64) for a in _flat(args)):
            return function(*args, **kwargs)
        return function(*map(_double, args), **{k: _double(v) for k, v in kwargs.items()})


def _flat(args: Sequence[Any]) -> Iterator[Any]:
    for a in args:
        yield from a if isinstance(a, tuple | list) else (a,)


def _double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(torch.float64) if value.dtype is torch.float32 else value
    if isinstance(value, list | tuple):
        return type(value)(_double(v) for v in value)
    return value


@contextmanager
def eager() -> Iterator[None]:
    """Within the block `torch.compile` compiles nothing."""
    with torch.compiler.set_stance("force_eager"):
        yield
