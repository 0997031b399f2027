# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision and timm."""

from __future__ import annotations

from typing import Any

from tools.zoo.models.base import Subject, classified, images, zoo


def _torchvision(name: str, size: int = 64, **given: Any) -> Subject:
    import torchvision

    return Subject(getattr(torchvision.models, name)(num_classes=10, **given), images(size), classified)


@zoo
def resnet18() -> Subject:
    return _torchvision("resnet18")


@zoo
def resnet50() -> Subject:
    return _torchvision("resnet50")


@zoo
def torchvision_vit() -> Subject:
    import torchvision

    model = torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10)
    return Subject(model, images(32), classified)


@zoo
def convnext() -> Subject:
    import torchvision
    from torchvision.models.convnext import CNBlockConfig

    blocks = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)]
    return Subject(torchvision.models.ConvNeXt(blocks, num_classes=10), images(32), classified)


@zoo
def torchvision_swin() -> Subject:
    import torchvision

    model = torchvision.models.SwinTransformer(
        [2, 2], 16, [2, 2], [2, 4], [4, 4], num_classes=10, stochastic_depth_prob=0.0
    )
    return Subject(model, images(32), classified)


@zoo
def timm_vit() -> Subject:
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4, num_classes=10
    )
    return Subject(model, images(32), classified)


@zoo
def timm_mixer() -> Subject:
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(img_size=32, patch_size=8, num_blocks=2, embed_dim=32, num_classes=10)
    return Subject(model, images(32), classified)


@zoo
def timm_efficientnet() -> Subject:
    import timm

    return Subject(timm.create_model("efficientnet_lite0", num_classes=10), images(64), classified)


@zoo
def feature_pyramid() -> Subject:
    """The backbone of a detector: a ResNet with a feature pyramid."""
    import torchvision
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    body = torchvision.models.resnet18()
    model = BackboneWithFPN(body, {"layer1": "0", "layer2": "1"}, [64, 128], 16)
    return Subject(
        model,
        lambda seed: images(32, count=1)(seed)[:1],
        lambda net, x: sum(v.square().mean() for v in net(x).values()),
    )


@zoo
def efficientnet() -> Subject:
    return _torchvision("efficientnet_b0", stochastic_depth_prob=0.0, dropout=0.0)
