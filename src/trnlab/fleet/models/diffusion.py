# SPDX-License-Identifier: Apache-2.0
"""U-Nets of latent diffusion models (Rombach et al. 2022), in the fields of diffusers' UNet2DConditionModel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trnlab.fleet.models.fields import Fields, wrong
from trnlab.fleet.models.unpartitioned import Layers, Recipe, Whole

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
WIDE = 2  # bytes of a latent and of a text's number, in bf16
TIME = 4  # bytes of a time
MOST = 8  # latents of 64 x 64 of a microbatch: as many fit on a core of Trn1, beside weights and moments


@dataclass(frozen=True)
class Shape:
    """Shape of a U-Net: for each level its width, whether it attends, heads, and transformer layers after a
    residual block.

    depth: residual blocks of a level on the way down. text: width of a text's words. pooled: numbers that describe an
    image beside its text, 0 for none. colours: of a latent, which is `side` wide.
    """

    widths: tuple[int, ...]
    attends: tuple[int, ...]
    heads: tuple[int, ...]
    transformers: tuple[int, ...]
    depth: int
    text: int
    pooled: int
    groups: int
    colours: int
    side: int

    @property
    def arguments(self) -> dict[str, str]:
        """Arguments of the recipe."""
        lists = {"widths": self.widths, "attended": self.attends, "heads": self.heads, "layers": self.transformers}
        one = {"depth": self.depth, "text": self.text, "pooled": self.pooled, "groups": self.groups}
        one |= {"colours": self.colours, "side": self.side, "words": WORDS}
        return {name: ",".join(map(str, value)) for name, value in lists.items()} | {
            name: str(value) for name, value in one.items()
        }


class _Parts(Layers):
    """Layers of a U-Net. width: of the text; time: of the embedded time."""

    def __init__(self, width: int, time: int) -> None:
        super().__init__()
        self.width, self.time = width, time

    def residual(self, into: int, out: int, side: int) -> None:
        """Two convolutions with norms before them and the time between them, and a way around."""
        self.normed(into)
        self.convolved(into, out, 3, side, bias=True)
        self.linear(self.time, out)
        self.normed(out)
        self.convolved(out, out, 3, side, bias=True)
        if into != out:
            self.convolved(into, out, 1, side, bias=True)

    def transformer(self, size: int, side: int, layers: int) -> None:
        """Attention of pixels to pixels and to the text, and a gated network, between two convolutions."""
        rows = side * side
        self.normed(size)
        for _ in range(2):
            self.convolved(size, size, 1, side, bias=True)
        for _ in range(layers):
            self._layer(size, rows)

    def _layer(self, size: int, rows: int) -> None:
        for _ in range(3):
            self.normed(size)
        for width, met in ((size, rows), (self.width, WORDS)):
            for into, of in ((size, rows), (width, met), (width, met)):
                self.linear(into, size, of, bias=False)
            self.linear(size, size, rows)
            self.products += 2.0 * rows * met * size  # scores, and values times them
        self.given += 2.0 * self.width * size * WORDS  # no gradient goes into the text
        self.linear(size, 8 * size, rows)
        self.linear(4 * size, size, rows)

    def unit(self, shape: Shape, into: int, level: int, side: int, attends: int) -> int:
        """A residual block, and what attends after it; returns what it gives."""
        out = shape.widths[level]
        self.residual(into, out, side)
        if attends:
            self.transformer(out, side, shape.transformers[level])
        return out


def unet(f: Fields) -> Whole:
    """Stable Diffusion's, 1, 2 and XL: latents of a frozen encoder, texts of another."""
    shape = _shape(f)
    made = _Parts(shape.text, 4 * shape.widths[0])
    _count(made, shape)
    most = max(MOST * 64**2 // shape.side**2, 1)
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
        kind="diffusion",
        recipe=Recipe("unet", "AdamW in bf16", shape.arguments, most=most),
        brought=WIDE * (2 * shape.colours * shape.side**2 + WORDS * shape.text + shape.pooled) + TIME,
    )


def _shape(f: Fields) -> Shape:
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
    return Shape(
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


def _attends(f: Fields, levels: int) -> tuple[int, ...]:
    """Whether each level has attention, the same on the way up as down."""
    default = ["CrossAttnDownBlock2D"] * (levels - 1) + ["DownBlock2D"]
    found = tuple(DOWN[kind] for kind in f.words("down_block_types", default, tuple(DOWN)))
    mirrored = [next(kind for kind, attends in UP.items() if attends == has) for has in found[::-1]]
    up = tuple(UP[kind] for kind in f.words("up_block_types", mirrored, tuple(UP)))
    if len(found) != levels or up != found[::-1]:
        raise wrong(f.name, f"its down_block_types and up_block_types are not the same {levels} levels")
    return found


def _levels(shape: Shape) -> Iterator[tuple[int, int]]:
    """Levels of the way down, which level, and how wide its latents are."""
    for level in range(len(shape.widths)):
        yield level, shape.side >> level


def _count(made: _Parts, shape: Shape) -> None:
    """Add all layers, in the order in which they are used."""
    first, last = shape.widths[0], len(shape.widths) - 1
    for width in filter(None, (first, shape.pooled)):
        made.linear(width, made.time)
        made.given += float(width * made.time)
        made.linear(made.time, made.time)
    made.convolved(shape.colours, first, 3, shape.side, bias=True)
    made.given += float(shape.colours * first * 9 * shape.side**2)
    kept, into = [first], first
    for level, side in _levels(shape):
        for _ in range(shape.depth):
            into = made.unit(shape, into, level, side, shape.attends[level])
            kept.append(into)
        if level < last:
            made.convolved(into, into, 3, side // 2, bias=True)
            kept.append(into)
    for attends in (1, 0):
        into = made.unit(shape, into, last, side, attends)
    for level, side in reversed(list(_levels(shape))):
        for _ in range(shape.depth + 1):
            into = made.unit(shape, into + kept.pop(), level, side, shape.attends[level])
        if level:
            made.convolved(into, into, 3, 2 * side, bias=True)
    made.normed(first)
    made.convolved(first, shape.colours, 3, shape.side, bias=True)
