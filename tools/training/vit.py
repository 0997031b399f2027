# SPDX-License-Identifier: Apache-2.0
"""ViT-Base with patches of 16 on images of 224, as data parallel ranks train it: 64 images each, AdamW.

trnlab estimate --target trn1.32xlarge --ranks 32 tools/training/vit.py IMAGES
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trnlab.frontends.torch import compile_step

WIDTH, LAYERS, HEADS, PATCH, SIDE, CLASSES = 768, 12, 12, 16, 224, 10


class Layer(nn.Module):
    """Attention and a feed-forward network, each on a normalised copy of the stream and added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.ln1, self.ln2 = (nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, T, C] to the same shape."""
        B, T, C = x.shape
        h = self.ln1(x)
        q, k, v = (f(h).view(B, T, HEADS, C // HEADS).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Vit(nn.Module):
    """The classifier: patches, a class token, places, layers, and a head on the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(3 * PATCH * PATCH, WIDTH)  # the convolution over patches, as the product that it is
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2 + 1, WIDTH))
        self.layers, self.ln = nn.Sequential(*(Layer() for _ in range(LAYERS))), nn.LayerNorm(WIDTH, eps=1e-12)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of images x [B, 3, S, S] and their classes y [B]."""
        across = SIDE // PATCH
        cut = x.view(len(x), 3, across, PATCH, across, PATCH).permute(0, 2, 4, 1, 3, 5)
        seen = self.patches(cut.reshape(len(x), across * across, -1))
        stream = torch.cat([self.token.expand(len(x), -1, -1), seen], 1) + self.places
        return F.cross_entropy(self.head(self.ln(self.layers(stream))[:, 0]), y)


def main(images: int) -> None:
    """Two steps on images of nothing."""
    dist.init_process_group("neuron")
    with torch.device("neuron"):
        model = DistributedDataParallel(Vit())
        step = compile_step(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
        for _ in range(2):
            step(torch.zeros(images, 3, SIDE, SIDE), torch.zeros(images, dtype=torch.int64))


if __name__ == "__main__":
    main(int(sys.argv[1]))
