# SPDX-License-Identifier: Apache-2.0
"""`horovod.torch.elastic` among ranks that stay the same from start to end.

Horovod's own launcher adds and removes ranks while a script runs; here ranks are others' (`trnlab run --ranks`,
torchrun), and none joins a script that has begun. A script trains as it would there while nobody comes or goes.
Where a rank is lost, the error of the collective ends the others as well, instead of going back to the last commit:
whoever starts them again (`trnlab run --ranks MIN:MAX --max-restarts N`) starts new processes.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import wraps
from typing import Any

import torch
from torch.utils.data import Sampler

from trnlab.frontends.torch.horovod.objects import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from trnlab.frontends.torch.horovod.ranks import rank, size


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Call it with a state that all ranks have alike: the first rank's."""

    @wraps(func)
    def begun(state: ElasticState, *args: Any, **kwargs: Any) -> Any:
        state.sync()
        return func(state, *args, **kwargs)

    return begun


class ElasticState:
    """What a job goes back to: `save` and `restore` of a subclass keep it, `sync` makes it that of all ranks."""

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Call these when the ranks are others."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks are others."""
        self.reset()
        for each in self._reset_callbacks:
            each()

    def commit(self) -> None:
        """Keep what there is now."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Nothing: the ranks are those that began."""

    def reset(self) -> None:
        """Nothing but what a subclass does."""

    def save(self) -> None:
        """Keep what there is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make the first rank's that of all."""
        raise NotImplementedError


class ObjectState(ElasticState):
    """Objects, which are the state's attributes."""

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._kept = kwargs
        self._give()

    def save(self) -> None:
        """Keep what there is now."""
        self._kept = {name: getattr(self, name) for name in self._kept}

    def restore(self) -> None:
        """Go back to what was kept last."""
        self._give()

    def sync(self) -> None:
        """Make what the first rank has kept that of all."""
        if self._kept:
            self._kept = self._bcast_object(self._kept)
            self._give()

    def _give(self) -> None:
        for name, value in self._kept.items():
            setattr(self, name, value)


class ElasticTorchState(ObjectState):
    """Modules, optimizers and samplers, each with its own state, and objects."""

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        given = {**kwargs, "model": model, "optimizer": optimizer}
        kinds = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)
        self._states: dict[str, Any] = {name: None for name, value in given.items() if isinstance(value, kinds)}
        for name in self._states:
            setattr(self, name, given.pop(name))
        super().__init__(broadcast_object, rank, **given)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self.__dict__.get("_states", ()):
            self._states[name] = copy.deepcopy(value.state_dict())

    def save(self) -> None:
        """Keep what there is now."""
        self._states = {name: copy.deepcopy(getattr(self, name).state_dict()) for name in self._states}
        super().save()

    def restore(self) -> None:
        """Go back to what was kept last."""
        for name, state in self._states.items():
            getattr(self, name).load_state_dict(state)
        super().restore()

    def sync(self) -> None:
        """Make the first rank's that of all."""
        for each in map(self.__getattribute__, self._states):
            if isinstance(each, torch.nn.Module):
                broadcast_parameters(each.state_dict(), 0)
            elif isinstance(each, torch.optim.Optimizer):
                broadcast_optimizer_state(each, 0)
            else:
                each.load_state_dict(broadcast_object(each.state_dict()))
        super().sync()
        self.save()


class ElasticSampler(Sampler[int]):
    """Indices of a data set for this rank, without those that all ranks together have processed in this epoch."""

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, with an order of its own."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """All ranks have processed as many."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go there."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal out among the ranks what is left."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        mine = range(self.rank, self.total_size, self.num_replicas)
        return iter([left[i % len(left)] for i in mine])  # from the beginning again, where there are too few

    def __len__(self) -> int:
        return self.num_samples


State, TorchState = ElasticState, ElasticTorchState  # as Horovod calls them
