# SPDX-License-Identifier: Apache-2.0
"""Models that are no stacks of equal blocks: what is counted of them, and the recipe whose step is captured.

Parameters are the sums of the tensors that the public implementations have; operations are those of the products,
forward and backward, as `graph.flops` counts them in a captured step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trnlab.fleet.models.fields import Fields, wrong
from trnlab.fleet.models.transformer import Model

ALL = 256  # samples of a microbatch that are looked at, at most
IMAGENET = 1_281_167  # images of ILSVRC 2012's training set
ID = 4  # bytes of a label


@dataclass(frozen=True)
class Recipe:
    """A training script of `frontends.torch.recipes`, and its arguments for a model. optimizer: in words.
    again: whether it can make activations again; most: samples of a microbatch, at most."""

    script: str
    optimizer: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    again: bool = True
    most: int = ALL

    @property
    def microbatches(self) -> tuple[int, ...]:
        """Powers of two, the largest first."""
        return tuple(1 << k for k in reversed(range(self.most.bit_length())))

    def words(self, microbatch: int, again: bool, precision: str) -> list[str]:
        """Words of a command line."""
        pairs = {"batch": str(microbatch), "precision": precision, **self.arguments}
        return [word for name, value in pairs.items() for word in (f"--{name}", value)] + ["--again"] * again


@dataclass(frozen=True)
class Whole(Model):
    """A model of which nothing is known but its parameters and the operations of one unit, forward and backward.

    items: what its samples are called, where they have no tokens. kind: its class, see `gpus.utilisation`; "" where
    it is that of its units. recipe: None for a step that was captured already. brought: bytes of a sample that come
    from the host. epoch: samples of the usual data set, 0 where there is none. optimizer: in words, "" where the
    recipe says it, or nobody.
    """

    count: int = 0
    per_unit: float = 0.0
    items: str = "samples"
    kind: str = ""
    recipe: Recipe | None = None
    brought: float = 0.0
    epoch: int = 0
    optimizer: str = ""

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.count

    @property
    def used(self) -> int:
        """As far as anybody knows, all of them."""
        return self.count

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
        """Floating-point operations per token of the step as it was captured, or as its recipe's."""
        return self.per_unit


@dataclass
class Layers:
    """Parameters and multiplications (with additions) of the layers of a network, as they are added to it.

    given: of products, those whose input is a sample's own, into which no gradient goes."""

    parameters: int = 0
    products: float = 0.0
    given: float = 0.0

    @property
    def operations(self) -> float:
        """Operations of a sample forward and backward, which takes the products twice more."""
        return 2 * (3 * self.products - self.given)

    def convolved(self, into: int, out: int, kernel: int, side: int, bias: bool = False) -> None:
        """A convolution whose result is `side` wide and high."""
        self.parameters += into * out * kernel * kernel + out * bias
        self.products += float(into * out * kernel * kernel * side * side)

    def linear(self, into: int, out: int, rows: int = 1, bias: bool = True) -> None:
        """A linear layer of so many rows of a sample."""
        self.parameters += (into + bias) * out
        self.products += float(into * out * rows)

    def normed(self, width: int) -> None:
        """A norm with scale and shift."""
        self.parameters += 2 * width


def resnet(f: Fields) -> Whole:
    """Residual networks of bottlenecks (He et al. 2015), the stride in the 3 x 3 convolution as in torchvision."""
    f.word("layer_type", "bottleneck", ("bottleneck",))
    side, stem = f.count("image_size", 224), f.count("embedding_size", 64)
    if side % 32:
        raise wrong(f.name, f"an image_size of {side} is no multiple of 32")
    depths, widths = f.counts("depths"), f.counts("hidden_sizes")
    if len(depths) != len(widths) or any(width % 4 for width in widths):
        raise wrong(f.name, f"depths {depths} and hidden_sizes {widths} make no stages of bottlenecks")
    colours, classes = f.count("num_channels", 3), f.count("num_labels", 1000)
    made, size = Layers(), side // 2
    made.convolved(colours, stem, 7, size)
    made.given = made.products
    made.normed(stem)
    into, size = stem, size // 2
    for stage, (depth, out) in enumerate(zip(depths, widths)):
        for block in range(depth):
            into, size = _bottleneck(made, into, out, size, 2 if stage and not block else 1)
    made.linear(into, classes)
    words = {name: ",".join(map(str, f.counts(name))) for name in ("depths", "hidden_sizes")}
    words |= {"stem": str(stem), "side": str(side), "colours": str(colours), "classes": str(classes)}
    return Whole(
        f.name,
        0,
        (),
        1,
        patch=1,
        source=f.source,
        count=made.parameters,
        per_unit=made.operations,
        items="images",
        kind="convolution",
        recipe=Recipe("resnet", "momentum in bf16", words),
        brought=2 * colours * side**2 + ID,
        epoch=IMAGENET,
    )


def _bottleneck(made: Layers, into: int, out: int, side: int, stride: int) -> tuple[int, int]:
    """One block; returns what it gives, how wide its image is."""
    width, after = out // 4, side // stride
    for a, b, kernel, size in ((into, width, 1, side), (width, width, 3, after), (width, out, 1, after)):
        made.convolved(a, b, kernel, size)
        made.normed(b)
    if stride > 1 or into != out:
        made.convolved(into, out, 1, after)
        made.normed(out)
    return out, after
