# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision and timm."""

from __future__ import annotations

from typing import Any

from torch import nn

from tools.zoo.models.base import Subject, classified, images, zoo


def _torchvision(name: str, size: int = 64, **given: Any) -> Subject:
    import torchvision

    return Subject(getattr(torchvision.models, name)(num_classes=10, **given), images(size), classified)


@zoo
def resnet18() -> Subject:
    return _torchvision("resnet18")


@zoo
def resnet50() -> Subject:
    """As it is trained from scratch, each block's last scale at zero: else batch norm over so few elements leaves
    little but rounding after fifty layers."""
    return _torchvision("resnet50", zero_init_residual=True)


@zoo
def resnet_bottlenecks() -> Subject:
    """The blocks of ResNet-50, one of each size: over fewer layers batch norm leaves more than rounding."""
    from torchvision.models.resnet import Bottleneck, ResNet

    return Subject(ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10), images(64), classified)


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


def _torchvision_swin(stochastic_depth: float) -> nn.Module:
    import torchvision

    return torchvision.models.SwinTransformer(
        [2, 2], 16, [2, 2], [2, 4], [4, 4], num_classes=10, stochastic_depth_prob=stochastic_depth
    )


@zoo
def torchvision_swin() -> Subject:
    return Subject(_torchvision_swin(0.0), images(32), classified)


@zoo
def torchvision_swin_stochastic_depth() -> Subject:
    return Subject(_torchvision_swin(0.5), images(32), classified, draws=True)


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
    """The kinds of blocks of EfficientNet (lite), one of each."""
    from timm.models import efficientnet
    from timm.models._efficientnet_builder import decode_arch_def

    blocks = decode_arch_def([["ds_r1_k3_s1_e1_c16"], ["ir_r2_k3_s2_e6_c24"], ["ir_r1_k5_s2_e6_c40_se0.25"]])
    model = efficientnet.EfficientNet(blocks, num_classes=10, num_features=64, stem_size=16, act_layer=nn.ReLU6)
    return Subject(model, images(32), classified)


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
