# SPDX-License-Identifier: Apache-2.0
"""Train a residual network of bottlenecks (He et al. 2015), ResNet-50 unless told otherwise, with momentum.

    trnlab estimate --target trn1.2xlarge src/trnlab/frontends/torch/recipes/resnet.py --batch 32

The stride is in the 3 x 3 convolution, as in torchvision, whose numbers of parameters these are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from trnlab.frontends.torch.recipes.common import DEVICE, FORMS, Blocks, numbers, options, train


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
    """A stem, four stages, a mean over the image and a head."""

    def __init__(
        self,
        depths: Sequence[int] = (3, 4, 6, 3),
        widths: Sequence[int] = (256, 512, 1024, 2048),
        stem: int = 64,
        colours: int = 3,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(colours, stem, 7, 2, 3, bias=False), nn.BatchNorm2d(stem)
        self.blocks, into = Blocks(), stem
        for stage, (depth, out) in enumerate(zip(depths, widths)):
            for block in range(depth):
                self.blocks.append(Bottleneck(into, out, 2 if stage and not block else 1))
                into = out
        self.head = nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, classes] of [N, colours, H, W]."""
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


def main() -> None:
    """Two steps."""
    parser = options(__doc__)
    parser.add_argument("--depths", type=numbers, default=(3, 4, 6, 3), help="blocks of each stage")
    parser.add_argument("--hidden_sizes", type=numbers, default=(256, 512, 1024, 2048), help="what each stage gives")
    for name, default in (("stem", 64), ("side", 224), ("colours", 3), ("classes", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    form = FORMS[args.precision]
    model = ResNet(args.depths, args.hidden_sizes, args.stem, args.colours, args.classes).to(DEVICE, form)
    model.blocks.again = args.again
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5)

    def batch() -> tuple[Tensor, Tensor]:
        images = torch.randn(args.batch, args.colours, args.side, args.side, dtype=form)
        return images, torch.randint(0, args.classes, (args.batch,))

    train(model, optimizer, lambda m, x, y: functional.cross_entropy(m(x), y), batch, args.steps)


if __name__ == "__main__":
    main()
