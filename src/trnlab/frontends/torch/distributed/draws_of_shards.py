# SPDX-License-Identifier: Apache-2.0
"""Random operators on DTensors: shards of one tensor draw different numbers, copies of a shard the same ones.

PyTorch shifts the offset of a Philox generator by where a shard lies in its tensor. Operators on this device draw
from the host's generator, which has no offset: a shard draws from one that is seeded with its place and a number, the
same on all ranks, and afterwards all ranks' generators stand where that one number left them. Within a trace the
place is noted: a program, which all ranks share, has one seed for whole tensors and one for shards of each layout,
which are inputs (`lowerings.registry.Randomness`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from trnlab.frontends.after_import import when_imported
from trnlab.frontends.torch.pytorch.places import RANDOM_SHARDS


def install() -> None:
    """Make it so, now or once PyTorch loads what it concerns, which takes seconds that scripts without it keep."""
    when_imported(RANDOM_SHARDS, _replace)


def _replace(module: Any) -> None:
    tracker = module.OffsetBasedRNGTracker
    others = tracker._distribute_region

    @contextmanager
    def region(self: Any, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
        with _drawn(module, spec, generator) if self._device.type == "neuron" else others(self, spec, generator):
            yield

    tracker._distribute_region = region
    from trnlab.frontends.torch.pytorch.random_shards import within_regions  # `import torch` alone needs it not

    within_regions(tracker)


@contextmanager
def _drawn(module: Any, spec: Any, generator: torch.Generator | None) -> Iterator[None]:
    """Within the block the host's generator is that of this rank's shard."""
    # These load much, which `import torch` alone need not.
    from trnlab.frontends.torch.draws import as_shard
    from trnlab.frontends.torch.pytorch.functional import are_traced

    mesh, own = spec.mesh, torch.default_generator
    coordinate = [mesh.get_local_rank(dim) for dim in range(mesh.ndim)]
    where, shards = module._calc_shard_info(coordinate, spec)
    place = module._calc_shard_linear_idx(where, shards)
    if are_traced():
        with as_shard(int(place), f"{spec.placements} of {tuple(mesh.shape)}") if max(shards) > 1 else nullcontext():
            yield
        return
    common = torch.randint(2**62, (), generator=generator or own).item()
    kept = own.get_state()
    own.manual_seed(int(common) + int(place))
    try:
        yield
    finally:
        own.set_state(kept)
