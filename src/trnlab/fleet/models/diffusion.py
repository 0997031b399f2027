# SPDX-License-Identifier: Apache-2.0
"""U-Nets of latent diffusion models (Rombach et al. 2022), in the fields of diffusers' UNet2DConditionModel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from trnlab.fleet.layers.convolutional import ConvolutionalLayers
from trnlab.fleet.layers.sizes import Attention
from trnlab.fleet.models.fields import ConfigurationFields, wrong
from trnlab.fleet.models.unpartitioned import UnpartitionedModel, images
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32, int32

DOWN = {"CrossAttnDownBlock2D": 1, "DownBlock2D": 0}  # kinds of levels, and whether they have attention
UP = {"CrossAttnUpBlock2D": 1, "UpBlock2D": 0}
PLAIN = {  # what other models of this class have, and these have not
    "mid_block_type": ("UNetMidBlock2DCrossAttn",),
    "class_embed_type": (None,),
    "encoder_hid_dim_type": (None,),
    "resnet_time_scale_shift": ("default",),
    "only_cross_attention": (False,),
    "num_class_embeds": (None,),
    "time_embedding_type": ("positional",),
    "act_fn": ("silu",),
    "conv_in_kernel": (3,),
    "conv_out_kernel": (3,),
    "dual_cross_attention": (False,),
    "addition_embed_type": (None, "text_time"),
}
WORDS = 77  # of a text: CLIP's positions
PERIOD = 10000.0  # of the sinusoids that say which step of noise it is
MOST = 8  # latents of 64 x 64 of a microbatch: as many fit on a core of Trn1, beside weights and moments


@dataclass(frozen=True)
class UNet:
    """Levels down, a middle, levels up, each of which takes what the same level down gave: for each level its width,
    whether it attends, heads, and transformer layers after a residual block."""

    widths: tuple[int, ...]
    attends: tuple[int, ...]
    heads: tuple[int, ...]
    transformers: tuple[int, ...]
    depth: int  # residual blocks of a level on the way down
    text: int  # width of a text's words
    pooled: int  # numbers that describe an image beside its text, 0 for none
    groups: int
    colours: int  # of a latent, which is `side` wide
    side: int
    update: ClassVar[str] = "adamw"

    @property
    def most(self) -> int:
        """Samples of a microbatch, at most."""
        return max(MOST * 64**2 // self.side**2, 1)

    def loss(self, layers: ConvolutionalLayers) -> Value:
        """The mean square by which the noise in latents is missed, of which `when` steps were added."""
        images = layers.share.batch
        latents, noise = (layers.given((images, self.colours, self.side, self.side)) for _ in range(2))
        when, text = layers.given((images, 1), float32), layers.given((images, WORDS, self.text))
        time = self._perceptron(layers, "described", self._waves(layers, when))
        if self.pooled:
            about = self._perceptron(layers, "pooled", layers.given((images, self.pooled)))
            time = layers.b.add(time, about)
        return layers.squared_error(self._noise(layers, latents, time, text), noise)

    def _waves(self, layers: ConvolutionalLayers, when: Value) -> Value:
        """Sinusoids of times [N, 1], [N, first width]."""
        b, half = layers.b, self.widths[0] // 2
        places = b.convert(b.iota((half,), int32, 0), float32)
        rates = b.exponential(b.multiply(places, -math.log(PERIOD) / half))
        angles = b.multiply(when, rates)
        return b.convert(b.concatenate([b.cosine(angles), b.sine(angles)], 1), layers.form)

    def _perceptron(self, layers: ConvolutionalLayers, name: str, x: Value) -> Value:
        """What describes an image, as wide as the embedded time."""
        width = 4 * self.widths[0]
        x = layers.activation(layers.linear(f"{name}.0", x, width, bias=True), "silu")
        return layers.linear(f"{name}.2", x, width, bias=True)

    def _noise(self, layers: ConvolutionalLayers, x: Value, time: Value, text: Value) -> Value:
        count, last = 0, len(self.widths) - 1

        def unit(x: Value, level: int, attends: int) -> Value:
            nonlocal count
            count += 1
            return layers.block(partial(self._unit, layers, f"units.{count - 1}", level, attends), x, time, text)

        x = layers.convolution("into", x, self.widths[0], 3, bias=True)
        kept = [x]
        for level, attends in enumerate(self.attends):
            for _ in range(self.depth):
                x = unit(x, level, attends)
                kept.append(x)
            if level < last:
                x = layers.convolution(f"less.{level}", x, x.shape[1], 3, 2, bias=True)
                kept.append(x)
        x = unit(unit(x, last, 1), last, 0)
        for level, attends in reversed(list(enumerate(self.attends))):
            for _ in range(self.depth + 1):
                x = unit(layers.b.concatenate([x, kept.pop()], 1), level, attends)
            if level:
                x = layers.convolution(f"more.{last - level}", layers.enlarged(x), x.shape[1], 3, bias=True)
        x = layers.activation(layers.group_norm("norm", x, self.groups), "silu")
        return layers.convolution("out", x, self.colours, 3, bias=True)

    def _unit(
        self, layers: ConvolutionalLayers, name: str, level: int, attends: int, x: Value, time: Value, text: Value
    ) -> Value:
        """A residual block, and attention after it where there is some."""
        x = self._residual(layers, f"{name}.residual", self.widths[level], x, time)
        return self._transformer(layers, f"{name}.attention", level, x, text) if attends else x

    def _residual(self, layers: ConvolutionalLayers, name: str, out: int, x: Value, time: Value) -> Value:
        """Two convolutions around which the input goes; between them the time of a sample is added."""
        b = layers.b
        y = layers.activation(layers.group_norm(f"{name}.norm1", x, self.groups), "silu")
        y = layers.convolution(f"{name}.conv1", y, out, 3, bias=True)
        moved = layers.linear(f"{name}.time", layers.activation(time, "silu"), out, bias=True)
        y = b.add(y, b.broadcast_in_dim(moved, y.shape, (0, 1)))
        y = layers.activation(layers.group_norm(f"{name}.norm2", y, self.groups), "silu")
        y = layers.convolution(f"{name}.conv2", y, out, 3, bias=True)
        around = layers.convolution(f"{name}.around", x, out, 1, bias=True) if x.shape[1] != out else x
        return layers.add(y, around)

    def _transformer(self, layers: ConvolutionalLayers, name: str, level: int, x: Value, text: Value) -> Value:
        """Layers between two convolutions of single pixels, around which the input goes."""
        width, heads = self.widths[level], self.heads[level]
        attention = Attention(heads, heads, width // heads, width // heads, causal=False, rope=False, bias="out")
        y = layers.convolution(f"{name}.into", layers.group_norm(f"{name}.norm", x, self.groups), width, 1, bias=True)
        rows = layers.rows(y)
        for i in range(self.transformers[level]):
            rows = _layer(layers, f"{name}.layers.{i}", attention, rows, text)
        return layers.add(x, layers.convolution(f"{name}.out", layers.image(rows, x), width, 1, bias=True))


def _layer(layers: ConvolutionalLayers, name: str, attention: Attention, x: Value, text: Value) -> Value:
    """Pixels [N, T, C] attend to pixels and to the text, then a gated network."""
    b, width = layers.b, x.shape[2]
    x = layers.add(x, layers.attention(f"{name}.own", attention, layers.norm(f"{name}.norm1", x, "layer")))
    x = layers.add(x, layers.attention(f"{name}.cross", attention, layers.norm(f"{name}.norm2", x, "layer"), text))
    both = layers.linear(f"{name}.up", layers.norm(f"{name}.norm3", x, "layer"), 8 * width, bias=True)
    y, gate = (b.slice_dim(both, 2, start, start + 4 * width) for start in (0, 4 * width))
    y = b.multiply(y, layers.activation(gate, "gelu"))
    return layers.add(x, layers.linear(f"{name}.down", y, width, bias=True))


def unet(f: ConfigurationFields) -> UnpartitionedModel:
    """Stable Diffusion's, 1, 2 and XL: latents of a frozen encoder, texts of another."""
    return images(f, _network(f), "diffusion", "AdamW in bf16")


def _network(f: ConfigurationFields) -> UNet:
    for field, known in PLAIN.items():
        f.one_of(field, known)
    widths = f.counts("block_out_channels")
    attends = _attends(f, len(widths))
    heads, layers = (
        f.each("attention_head_dim", 8, len(widths)),
        f.each("transformer_layers_per_block", 1, len(widths)),
    )
    pooled = f.count("projection_class_embeddings_input_dim") if f.config.get("addition_embed_type") else 0
    side, groups = f.count("sample_size", 64), f.count("norm_num_groups", 32)
    if side % (1 << len(widths) - 1) or any(w % n or w % groups for w, n in zip(widths, heads)):
        raise wrong(
            f.name, f"{len(widths)} levels of {widths} do not divide {side} pixels, {heads} heads, {groups} groups"
        )
    return UNet(
        widths,
        attends,
        heads,
        layers,
        f.count("layers_per_block", 2),
        f.count("cross_attention_dim"),
        pooled,
        groups,
        f.count("in_channels", 4),
        side,
    )


def _attends(f: ConfigurationFields, levels: int) -> tuple[int, ...]:
    """Whether each level has attention, the same on the way up as down."""
    default = ["CrossAttnDownBlock2D"] * (levels - 1) + ["DownBlock2D"]
    found = tuple(DOWN[kind] for kind in f.words("down_block_types", default, tuple(DOWN)))
    mirrored = [next(kind for kind, attends in UP.items() if attends == has) for has in found[::-1]]
    up = tuple(UP[kind] for kind in f.words("up_block_types", mirrored, tuple(UP)))
    if len(found) != levels or up != found[::-1]:
        raise wrong(f.name, f"its down_block_types and up_block_types are not the same {levels} levels")
    return found
