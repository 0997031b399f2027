# SPDX-License-Identifier: Apache-2.0
"""Residual networks of bottlenecks (He et al. 2015), the stride in the 3 x 3 convolution as in torchvision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from trnlab.fleet.layers.convolutional import ConvolutionalLayers
from trnlab.fleet.models.fields import ConfigurationFields, wrong
from trnlab.fleet.models.unpartitioned import ALL, UnpartitionedModel, images
from trnlab.graph.ir import Value

IMAGENET = 1_281_167  # images of ILSVRC 2012's training set


@dataclass(frozen=True)
class ResNet:
    """A residual network on images that have `colours` and are `side` pixels wide and high."""

    depths: tuple[int, ...]  # blocks of each stage
    widths: tuple[int, ...]  # channels that each gives
    # of what precedes them. Images have `colours` and are `side` pixels wide and high.
    stem: int
    side: int
    colours: int
    classes: int
    update: ClassVar[str] = "momentum"
    most: ClassVar[int] = ALL

    def loss(self, layers: ConvolutionalLayers) -> Value:
        """A stem, the stages, a mean over the image and a head; cross entropy."""
        images = layers.share.batch
        x = layers.given((images, self.colours, self.side, self.side))
        x = layers.batch_norm("norm", layers.convolution("stem", x, self.stem, 7, 2))
        x = layers.max_pool(layers.activation(x, "relu"), 3, 2)
        for i, (out, stride) in enumerate(self._blocks()):
            x = layers.block(partial(_bottleneck, layers, f"blocks.{i}", out, stride), x)
        scores = layers.linear("head", layers.mean_pool(x), self.classes, bias=True)
        return layers.loss(layers.b.reshape(scores, (images, 1, self.classes)))

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Channels that each block gives, and its stride."""
        for stage, (depth, out) in enumerate(zip(self.depths, self.widths)):
            for block in range(depth):
                yield out, 2 if stage and not block else 1


def _bottleneck(layers: ConvolutionalLayers, name: str, out: int, stride: int, x: Value) -> Value:
    """Three convolutions around which the input goes, through a fourth where its size changes."""

    def normed(part: str, x: Value, width: int, kernel: int, stride: int = 1) -> Value:
        y = layers.convolution(f"{name}.{part}", x, width, kernel, stride)
        return layers.batch_norm(f"{name}.{part}.norm", y)

    y = layers.activation(normed("1", x, out // 4, 1), "relu")
    y = layers.activation(normed("2", y, out // 4, 3, stride), "relu")
    y = normed("3", y, out, 1)
    around = normed("around", x, out, 1, stride) if stride > 1 or x.shape[1] != out else x
    return layers.activation(layers.add(y, around), "relu")


def resnet(f: ConfigurationFields) -> UnpartitionedModel:
    """In the fields of Hugging Face's ResNetConfig."""
    f.word("layer_type", "bottleneck", ("bottleneck",))
    side, stem = f.count("image_size", 224), f.count("embedding_size", 64)
    if side % 32:
        raise wrong(f.name, f"an image_size of {side} is no multiple of 32")
    depths, widths = f.counts("depths"), f.counts("hidden_sizes")
    if len(depths) != len(widths) or any(width % 4 for width in widths):
        raise wrong(f.name, f"depths {depths} and hidden_sizes {widths} make no stages of bottlenecks")
    network = ResNet(depths, widths, stem, side, f.count("num_channels", 3), f.count("num_labels", 1000))
    return images(f, network, "convolution", "momentum in bf16", IMAGENET)
