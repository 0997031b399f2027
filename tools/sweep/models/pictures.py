# SPDX-License-Identifier: Apache-2.0
"""Pictures: torchvision, timm, and what transformers has for them."""

from __future__ import annotations

from typing import Any

from tools.sweep.script import TrainingScript, add

_LOSS = "loss = F.cross_entropy(model(images), labels)"
_LOGITS = "loss = F.cross_entropy(model(pixel_values=images).logits, labels)"


def _batch(size: int, classes: int = 1000) -> str:
    return f"""
        images = torch.randn(batch_size, 3, {size}, {size}).to("neuron")
        labels = torch.randint(0, {classes}, (batch_size,)).to("neuron")
    """


def _classifier(name: str, build: str, size: int = 224, count: int = 32, loss: str = _LOSS, **how: Any) -> None:
    add(name, TrainingScript(build, _batch(size), loss, batch_size=count, **how))


def _torchvision(name: str, count: int = 32, size: int = 224, **how: Any) -> None:
    _classifier(name, f"import torchvision\nmodel = torchvision.models.{name}(weights=None)", size, count, **how)


def _timm(name: str, count: int = 32, size: int = 224, given: str = "", **how: Any) -> None:
    _classifier(f"timm_{name}", f"import timm\nmodel = timm.create_model({name!r}{given})", size, count, **how)


def _transformers(name: str, kind: str, given: str = "", count: int = 32, size: int = 224, **how: Any) -> None:
    build = f"""
        from transformers import {kind}Config, {kind}ForImageClassification
        model = {kind}ForImageClassification({kind}Config(num_labels=1000{given}))
    """
    _classifier(name, build, size, count, _LOGITS, **how)


_torchvision("resnet18", 64)
_torchvision("resnet50", 32, precision="bfloat16")
_torchvision("vgg11", 16)
_torchvision("mobilenet_v2", 32)
_torchvision("mobilenet_v3_small", 64)
_torchvision("shufflenet_v2_x1_0", 32)
_torchvision("densenet121", 8)
_torchvision("efficientnet_b0", 16)
_torchvision("regnet_y_400mf", 32)
_torchvision("convnext_tiny", 16)
_torchvision("vit_b_16", 32)
_torchvision("swin_t", 16)
_torchvision("maxvit_t", 4)
_timm("vit_small_patch16_224", 64, given=", depth=4")
_timm("deit3_small_patch16_224", 64, given=", depth=4")
_timm("beit_base_patch16_224", 16, given=", depth=3")
_timm("mixer_b16_224", 32, given=", num_blocks=4", precision="bfloat16")
_timm("resmlp_12_224", 32, given=", num_blocks=4")
_timm("convnextv2_tiny", 16)
_timm("poolformer_s12", 16)
_timm("levit_128s", 64)
_timm("xcit_tiny_12_p16_224", 32, given=", depth=3")
_timm("efficientvit_b0", 32)
_timm("vit_base_patch16_siglip_224", 32, given=", depth=3, num_classes=1000")
_timm("coatnet_0_rw_224", 8)
_transformers("hf_vit", "ViT", ", num_hidden_layers=4", checkpoint="model.gradient_checkpointing_enable()")
_transformers("hf_swinv2", "Swinv2", ", depths=[1, 1, 2, 1]", count=8)
_transformers("hf_dinov2", "Dinov2", ", num_hidden_layers=3, image_size=224", count=16)
_transformers("hf_pvt", "Pvt", "", count=8)
_transformers("hf_mobilevit", "MobileViT", ", image_size=256", count=16, size=256)
_transformers("hf_focalnet", "FocalNet", ", depths=[1, 1, 2, 1]", count=8)

add(
    "vit_mae",
    TrainingScript(
        """
        from transformers import ViTMAEConfig, ViTMAEForPreTraining
        model = ViTMAEForPreTraining(ViTMAEConfig(num_hidden_layers=3, decoder_num_hidden_layers=2))
        """,
        'images = torch.randn(batch_size, 3, 224, 224).to("neuron")',
        "loss = model(pixel_values=images).loss",
        batch_size=32,
    ),
)
_PIXELS = """
    images = torch.randn(batch_size, 3, 512, 512).to("neuron")
    labels = torch.randint(0, 150, (batch_size, 512, 512)).to("neuron")
"""
add(
    "segformer_b0",
    TrainingScript(
        """
        from transformers import SegformerConfig, SegformerForSemanticSegmentation
        model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=150))
        """,
        _PIXELS,
        "loss = model(pixel_values=images, labels=labels).loss",
        batch_size=2,
    ),
)
add(
    "fcn_resnet50",
    TrainingScript(
        """
        import torchvision
        model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=150)
        """,
        _PIXELS.replace("512", "256"),
        'loss = F.cross_entropy(model(images)["out"], labels)',
        batch_size=2,
    ),
)
_BOXES = """
    images = torch.randn(batch_size, 3, 480, 480).to("neuron")
    labels = [
        {"class_labels": torch.randint(0, 91, (5,)).to("neuron"), "boxes": torch.rand(5, 4).to("neuron") / 2 + 0.1}
        for _ in range(batch_size)
    ]
"""
add(
    "detr_resnet50",
    TrainingScript(
        """
        from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig
        backbone = ResNetConfig(out_features=["stage4"])
        config = DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
                            backbone_config=backbone, encoder_layers=2, decoder_layers=2, num_labels=91)
        model = DetrForObjectDetection(config)
        """,
        _BOXES,
        "loss = model(pixel_values=images, labels=labels).loss",
        batch_size=2,
        precision="float32",
    ),
)
add(
    "yolos_tiny",
    TrainingScript(
        """
        from transformers import YolosConfig, YolosForObjectDetection
        config = YolosConfig(hidden_size=192, num_hidden_layers=3, num_attention_heads=3, intermediate_size=768,
                             image_size=[480, 480], num_labels=91)
        model = YolosForObjectDetection(config)
        """,
        _BOXES,
        "loss = model(pixel_values=images, labels=labels).loss",
        batch_size=2,
    ),
)
add(
    "faster_rcnn_resnet50",
    TrainingScript(
        """
        import torchvision
        model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None)
        """,
        """
        images = [torch.rand(3, 480, 480).to("neuron") for _ in range(batch_size)]
        corners = [torch.rand(5, 2) * 200 for _ in range(batch_size)]
        targets = [
            {"boxes": torch.cat([c, c + 50 + 100 * torch.rand(5, 2)], 1).to("neuron"),
             "labels": torch.randint(1, 91, (5,)).to("neuron")}
            for c in corners
        ]
        """,
        "loss = sum(model(images, targets).values())",
        batch_size=2,
        precision="float32",
    ),
)
