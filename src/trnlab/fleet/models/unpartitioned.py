# SPDX-License-Identifier: Apache-2.0
"""Models that are no stacks of equal blocks: networks that say what they compute, and steps that were captured.

Parameters are the sums of the tensors that the public implementations have; operations are those of the products,
forward and backward. Both are read from the graph of a network's own step (`counts.of_network`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from trnlab.fleet.layers.convolutional import ConvolutionalLayers
from trnlab.fleet.models import counts
from trnlab.fleet.models.counts import Counted
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Model
from trnlab.graph.ir import Value

ALL = 256  # samples of a microbatch that are looked at, at most
ID = 4  # bytes of a label


class UnpartitionedNetwork(Protocol):
    """What a model computes that is no stack of blocks. update: how it is trained, see `costs.networks.UPDATES`."""

    update: ClassVar[str]

    def __hash__(self) -> int:
        """Networks are values: what is counted of one is counted once."""
        ...

    @property
    def most(self) -> int:
        """Samples of a microbatch, at most."""
        ...

    def loss(self, layers: ConvolutionalLayers) -> Value:
        """The loss of a batch of `layers.share.batch` samples, a scalar."""
        ...


@dataclass(frozen=True)
class UnpartitionedModel(Model):
    """A model whose step is divided by data alone, or as it says itself."""

    items: str = "samples"  # what its samples are called, where they have no tokens
    kind: str = ""  # its class, see `gpus.utilisation`; "" where it is that of its units
    network: UnpartitionedNetwork | None = None  # what it computes
    figures: Counted | None = None  # its numbers, where that is not known here
    epoch: int = 0  # samples of the usual data set, 0 where there is none
    optimizer: str = ""  # in words, "" where nobody says it

    @property
    def _figures(self) -> Counted:
        if self.figures is not None:
            return self.figures
        assert self.network is not None
        return counts.of_network(self.network)

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self._figures.parameters

    @property
    def used(self) -> int:
        """As far as anybody knows, all of them."""
        return self.parameters

    @property
    def brought(self) -> float:
        """Bytes of a sample that come from the host."""
        return self._figures.given

    @property
    def embedding_parameters(self) -> int:
        """None that are known apart."""
        return 0

    @property
    def unit(self) -> str:
        """What is counted of it."""
        return self.items if self.sequence == 1 else "tokens"

    @property
    def counted(self) -> str:
        """What plans count of it."""
        return self.unit

    def flops_per_token(self, sequence: int) -> float:
        """Floating-point operations of a unit, forward and backward."""
        if self.figures is not None:
            return self.figures.operations
        assert self.network is not None
        return counts.operations_of_network(self.network)


def images(
    f: ConfigurationFields, network: UnpartitionedNetwork, kind: str, optimizer: str, epoch: int = 0
) -> UnpartitionedModel:
    """The model of a network of images, see `UnpartitionedModel`."""
    return UnpartitionedModel(
        f.name,
        0,
        (),
        1,
        patch=1,
        source=f.source,
        items="images",
        kind=kind,
        network=network,
        epoch=epoch,
        optimizer=optimizer,
    )
