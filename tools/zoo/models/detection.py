# SPDX-License-Identifier: Apache-2.0
"""Detectors of torchvision on small images, trained on the losses that they return for boxes given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tools.zoo.models.base import Subject, zoo

SIZE = 32
ANCHORS = ((8, 12), (16, 24))


def _body() -> nn.Module:
    """A small network with two sizes of features of 32 channels, whose statistics are frozen as detectors' are."""
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.models.resnet import BasicBlock, ResNet
    from torchvision.ops import FrozenBatchNorm2d
    from torchvision.ops.feature_pyramid_network import ExtraFPNBlock

    class Nothing(ExtraFPNBlock):
        """In place of a level that would be pooled from the last."""

        def forward(self, results: list[Tensor], x: list[Tensor], names: list[str]) -> tuple[list[Tensor], list[str]]:
            return results, names

    body = ResNet(BasicBlock, [1, 1, 1, 1], norm_layer=FrozenBatchNorm2d)
    return BackboneWithFPN(body, {"layer1": "0", "layer2": "1"}, [64, 128], 32, extra_blocks=Nothing())


def _detector(model: nn.Module) -> Subject:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        corners = torch.rand(2, 2, 2, generator=generator) * SIZE / 2
        sizes = 6 + torch.rand(2, 2, 2, generator=generator) * (SIZE / 2 - 6)
        boxes = torch.cat([corners, corners + sizes], -1)
        labels = torch.randint(1, 4, (2, 2), generator=generator)
        return torch.rand(2, 3, SIZE, SIZE, generator=generator), boxes, labels

    def loss(net: nn.Module, pictures: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        wanted = [{"boxes": b, "labels": y} for b, y in zip(boxes, labels)]
        return sum(net(list(pictures), wanted).values())

    return Subject(model, batch, loss)


def _anchors() -> nn.Module:
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    return AnchorGenerator(ANCHORS, ((0.5, 1.0, 2.0),) * len(ANCHORS))


@zoo
def retinanet() -> Subject:
    from torchvision.models.detection import RetinaNet

    return _detector(RetinaNet(_body(), 4, min_size=SIZE, max_size=SIZE, anchor_generator=_anchors()))


@zoo
def ssd() -> Subject:
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD, SSDHead

    head = SSDHead([32, 32], [4, 4], 4)
    return _detector(SSD(_body(), DefaultBoxGenerator([[2], [2]]), (SIZE, SIZE), 4, head=head))


@zoo
def faster_rcnn() -> Subject:
    from torchvision.models.detection import FasterRCNN
    from torchvision.ops import MultiScaleRoIAlign

    body = _body()
    return _detector(
        FasterRCNN(
            body,
            4,
            min_size=SIZE,
            max_size=SIZE,
            rpn_anchor_generator=_anchors(),
            rpn_pre_nms_top_n_train=20,
            rpn_post_nms_top_n_train=10,
            box_roi_pool=MultiScaleRoIAlign(["0", "1"], 3, 2),
            box_batch_size_per_image=8,
        )
    )
