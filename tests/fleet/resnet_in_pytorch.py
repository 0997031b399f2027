# SPDX-License-Identifier: Apache-2.0
"""A residual network of bottlenecks (He et al. 2015) in PyTorch, the reference of `fleet.models.residual`.

The stride is in the 3 x 3 convolution, as in torchvision, whose numbers of parameters these are.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Bottleneck(nn.Module):
    """Three convolutions around which the input goes, through a fourth where its size changes."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        width = out // 4
        self.conv1, self.norm1 = nn.Conv2d(into, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.around = None
        if stride > 1 or into != out:
            self.around = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """[N, out, H / stride, W / stride] of [N, into, H, W]."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = functional.relu(self.norm2(self.conv2(y)))
        return functional.relu(self.norm3(self.conv3(y)) + (x if self.around is None else self.around(x)))


class ResNet(nn.Module):
    """A stem, four stages, a mean over the image and a head. again: only what enters a block is kept."""

    def __init__(
        self,
        depths: Sequence[int] = (3, 4, 6, 3),
        widths: Sequence[int] = (256, 512, 1024, 2048),
        stem: int = 64,
        colours: int = 3,
        classes: int = 1000,
        again: bool = False,
    ) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(colours, stem, 7, 2, 3, bias=False), nn.BatchNorm2d(stem)
        self.blocks, into, self.again = nn.ModuleList(), stem, again
        for stage, (depth, out) in enumerate(zip(depths, widths)):
            for block in range(depth):
                self.blocks.append(Bottleneck(into, out, 2 if stage and not block else 1))
                into = out
        self.head = nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, classes] of [N, colours, H, W]."""
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 3, 2, 1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x.mean((2, 3)))
