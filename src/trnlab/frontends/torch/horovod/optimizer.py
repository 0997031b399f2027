# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer`: gradients are reduced over the ranks.

Horovod does so while the backward pass goes on, in an order that ranks agree on: each may have another one, as where
they use other parts of a model. Here the host waits for each collective, so that they are asked for at its end, in
the order of the parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.horovod.calls import (
    Adasum,
    Average,
    allreduce_,
    allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from trnlab.frontends.torch.horovod.compression import Compression
from trnlab.frontends.torch.horovod.ranks import ProcessSet, global_process_set


class _Distributed:
    """What `DistributedOptimizer` adds to an optimizer's class. Private names that scripts read are Horovod's."""

    def _name(self: Any, names: dict[Tensor, str], sparse_as_dense: bool) -> None:
        self._parameter_names, self._sparse_as_dense = names, sparse_as_dense

    def _distribute(self: Any, passes: int, op: str, compression: Any, predivide: float, ranks: ProcessSet) -> None:
        self._passes, self._op, self._compression, self._ranks = passes, op, compression, ranks
        self._factors = (1 / predivide, predivide)
        self._left: dict[Tensor, int] = {}
        self._skipped = self._synchronized = False
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._left[parameter] = passes
                    parameter.register_post_accumulate_grad_hook(self._count)

    def _count(self: Any, parameter: Tensor) -> None:
        if self._left[parameter] <= 0:
            raise AssertionError(
                "gradients were computed more than backward_passes_per_step times before step(): increase it"
            )
        self._left[parameter] -= 1

    def synchronize(self: Any) -> None:
        """Make all gradients those of all ranks; parameters without a gradient count as zero there."""
        sent = [self._send(parameter) for parameter in self._left] if self._op != Adasum else []
        for parameter, finish in zip(self._left, sent):
            reduced = finish()
            if reduced is not parameter.grad:
                if reduced.is_sparse:
                    parameter.grad = reduced
                else:
                    parameter.grad.copy_(reduced)
        self._left = dict.fromkeys(self._left, self._passes)
        self._synchronized = True

    def _send(self: Any, parameter: Tensor) -> Callable[[], Tensor]:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        sparse = parameter.grad.is_sparse
        if sparse and not self._sparse_as_dense:
            return sparse_allreduce_async(parameter.grad, None, self._op, self._ranks)
        small, context = self._compression.compress(parameter.grad.to_dense() if sparse else parameter.grad)
        before, after = self._factors
        handle = allreduce_async_(small, None, None, self._op, before, after, self._ranks)

        def finish() -> Tensor:
            reduced: Tensor = self._compression.decompress(synchronize(handle), context)
            return reduced.to_sparse() if sparse else reduced

        return finish

    @contextmanager
    def skip_synchronize(self: Any) -> Iterator[None]:
        """Within the block `step` takes gradients as they are, as after `synchronize()` and clipping."""
        self._skipped = True
        try:
            yield
        finally:
            self._skipped = False

    def set_backward_passes_per_step(self: Any, passes: int) -> None:
        """From now on gradients of so many backward passes are added up before they are reduced."""
        self._passes = passes
        self._left = dict.fromkeys(self._left, passes)

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        """As ever, where no gradient is on its way."""
        if any(left <= 0 for left in self._left.values()):
            raise AssertionError("zero_grad() between backward() and step() or synchronize(): gradients are lost")
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def step(self: Any, closure: Any = None) -> Any:
        """Synchronize, then the step of the optimizer that this one was made of."""
        if not self._skipped:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() after synchronize(): gradients are "
                    "reduced twice",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        if self._op != Adasum:
            return super().step(closure)  # type: ignore[misc]
        began = {parameter: parameter.detach().clone() for parameter in self._left}
        result = super().step(closure)  # type: ignore[misc]
        with torch.no_grad():
            for parameter, before in began.items():
                small, context = self._compression.compress(parameter - before)
                moved = self._compression.decompress(allreduce_(small, op=Adasum, process_set=self._ranks), context)
                parameter.copy_(before + moved)
        return result


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The optimizer, whose `step` uses gradients that are reduced over all ranks; with `op=Adasum` it is what each
    rank's own step changed that is reduced.

    `backward_passes_per_step`: gradients of so many backward passes are added up before they are reduced. Groups say
    what Horovod sends together, which changes no value.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    named = None if named_parameters is None else list(named_parameters)
    if named is not None:
        _check_names(optimizer, named)
    cls = type(optimizer)
    optimizer.__class__ = type(cls.__name__, (_Distributed, cls), {})
    optimizer._name(_named(optimizer, named), sparse_as_dense)  # type: ignore[attr-defined]
    settings = (op, compression or Compression.none, gradient_predivide_factor, process_set)
    optimizer._distribute(backward_passes_per_step, *settings)  # type: ignore[attr-defined]
    return optimizer


def _check_names(optimizer: torch.optim.Optimizer, named: list[Any]) -> None:
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError("named_parameters should be a sequence of tuples (name, parameter)")
    if len({name for name, _ in named}) < len(named):
        raise ValueError("parameter names in named_parameters must be unique")
    known = {id(parameter) for _, parameter in named}
    if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("named_parameters was specified, but one or more model parameters were not named")


def _named(optimizer: torch.optim.Optimizer, named: list[tuple[str, Tensor]] | None) -> dict[Tensor, str]:
    """Each parameter's name, as Horovod keeps it."""
    if named is not None:
        return {parameter: name for name, parameter in named}
    groups = enumerate(optimizer.param_groups)
    return {p: f"allreduce.noname.{i}.{j}" for i, group in groups for j, p in enumerate(group["params"])}
