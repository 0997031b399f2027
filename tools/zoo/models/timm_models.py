# SPDX-License-Identifier: Apache-2.0
"""Models of timm that joined later than those of `vision`."""

from __future__ import annotations

from typing import Any

from tools.zoo.models.base import Subject, classified, images, zoo


def _timm(name: str, size: int = 32, **given: Any) -> Subject:
    import timm

    return Subject(timm.create_model(name, num_classes=10, **given), images(size), classified)


@zoo
def timm_regnet() -> Subject:
    """RegNetY: groups of channels, and squeezed weights of channels."""
    from timm.models.regnet import RegNet, RegNetCfg

    config = RegNetCfg(depth=5, w0=8, wa=14.0, wm=2.0, group_size=8, se_ratio=0.25, stem_width=16)
    return Subject(RegNet(config, num_classes=10), images(64), classified)


@zoo
def timm_coatnet() -> Subject:
    """The package's own size for tests."""
    return _timm("test_coatnet", 64, img_size=64)


@zoo
def timm_maxvit() -> Subject:
    """The package's own size for tests."""
    return _timm("test_maxvit", 64, img_size=64)


@zoo
def timm_mobilenetv4() -> Subject:
    """The kinds of blocks of MobileNetV4 (hybrid), one of each: universal bottlenecks, and attention with one key."""
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.mobilenetv3 import MobileNetV3

    blocks = decode_arch_def(
        [
            ["er_r1_k3_s2_e4_c16"],
            ["uir_r1_a3_k5_s2_e4_c24", "uir_r1_a0_k0_s1_e2_c24"],
            ["uir_r1_a3_k0_s1_e4_c24", "mqa_r1_k3_h2_s1_v2_d16_c24", "uir_r1_a0_k0_s1_e2_c24"],
        ]
    )
    model = MobileNetV3(blocks, num_classes=10, stem_size=16, num_features=64, layer_scale_init_value=1e-5)
    return Subject(model, images(64), classified)


@zoo
def timm_eva02() -> Subject:
    """Rotations of positions in two dimensions, SwiGLU."""
    return _timm("eva02_tiny_patch14_224", img_size=32, patch_size=8, depth=2, embed_dim=48, num_heads=4)
