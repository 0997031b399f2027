# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision that see films, of a few frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tools.zoo.models.base import Subject, classified, zoo


def _film(model: nn.Module, size: int, frames: int = 4, count: int = 2) -> Subject:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        films = torch.randn(count, 3, frames, size, size, generator=generator)
        return films, torch.randint(0, 10, (count,), generator=generator)

    return Subject(model, batch, classified)


@zoo
def video_resnet() -> Subject:
    """R3D up to its second stage, with one block of a kind in place of two."""
    from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv3DSimple, VideoResNet

    model = VideoResNet(BasicBlock, [Conv3DSimple] * 4, [1, 1, 1, 1], BasicStem, num_classes=10)
    model.layer3, model.layer4, model.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 10)
    return _film(model, 16)


@zoo
def video_swin() -> Subject:
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    model = SwinTransformer3d([2, 4, 4], 16, [2, 2], [2, 4], [2, 4, 4], num_classes=10, stochastic_depth_prob=0.0)
    return _film(model, 32)


@zoo
def video_mvit() -> Subject:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(1, 16, 32, (3, 3, 3), (1, 2, 2), (1, 1, 1), (1, 1, 1)),
        MSBlockConfig(2, 32, 32, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 2, 2)),
    ]
    model = MViT(
        (16, 16),
        4,
        blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=10,
        dropout=0.0,
        stochastic_depth_prob=0.0,
    )
    return _film(model, 16)
