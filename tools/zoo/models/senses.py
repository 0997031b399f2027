# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that see, hear, or do so beside a text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.zoo.models.base import SMALL, Subject, floats, images, tokens, zoo


@zoo
def segformer() -> Subject:
    """Every pixel has a label; decoded over a batch norm."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
        decoder_hidden_size=32,
        num_labels=5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(2, 3, 32, 32, generator=generator), torch.randint(0, 5, (2, 32, 32), generator=generator)

    return Subject(
        SegformerForSemanticSegmentation(config), batch, lambda model, x, y: model(pixel_values=x, labels=y).loss
    )


@zoo
def siglip() -> Subject:
    from transformers import SiglipConfig, SiglipModel, SiglipTextConfig, SiglipVisionConfig

    config = SiglipConfig(
        text_config=SiglipTextConfig(vocab_size=128, max_position_embeddings=16, **SMALL).to_dict(),
        vision_config=SiglipVisionConfig(image_size=32, patch_size=8, **SMALL).to_dict(),
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        return (*tokens(128, 4, 16)(seed), images(32)(seed)[0])

    return Subject(
        SiglipModel(config), batch, lambda model, ids, x: model(input_ids=ids, pixel_values=x, return_loss=True).loss
    )


@zoo
def blip() -> Subject:
    """A caption of an image."""
    from transformers import BlipConfig, BlipForConditionalGeneration, BlipTextConfig, BlipVisionConfig

    config = BlipConfig(
        text_config=BlipTextConfig(
            vocab_size=128,
            max_position_embeddings=16,
            encoder_hidden_size=32,
            bos_token_id=1,
            sep_token_id=2,
            pad_token_id=0,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            **SMALL,
        ).to_dict(),
        vision_config=BlipVisionConfig(image_size=32, patch_size=8, **SMALL).to_dict(),
        projection_dim=16,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        return (*tokens(128, 2, 12)(seed), images(32, count=2)(seed)[0])

    return Subject(
        BlipForConditionalGeneration(config),
        batch,
        lambda model, ids, x: model(input_ids=ids, pixel_values=x, labels=ids).loss,
    )


@zoo
def detr() -> Subject:
    """Boxes and their classes, with the loss of its package: what belongs to what is decided on the host."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    body = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    body.out_features = ["stage2"]
    config = DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=body,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        num_queries=6,
        num_labels=3,
        dropout=0.0,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return (
            torch.randn(2, 3, 32, 32, generator=generator),
            torch.randint(0, 3, (2, 2), generator=generator),
            torch.rand(2, 2, 4, generator=generator) / 2 + 0.1,
        )

    def loss(model: nn.Module, x: Tensor, classes: Tensor, boxes: Tensor) -> Tensor:
        labels = [{"class_labels": c, "boxes": b} for c, b in zip(classes, boxes)]
        return model(pixel_values=x, labels=labels).loss

    return Subject(DetrForObjectDetection(config), batch, loss)


@zoo
def sam() -> Subject:
    """Masks for a point in an image; trained on one of them."""
    from transformers import SamConfig, SamMaskDecoderConfig, SamModel, SamPromptEncoderConfig, SamVisionConfig

    config = SamConfig(
        vision_config=SamVisionConfig(
            initializer_range=0.3,
            hidden_size=32,
            output_channels=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
            mlp_dim=64,
            window_size=2,
            global_attn_indexes=[1],
            num_pos_feats=8,
        ).to_dict(),
        prompt_encoder_config=SamPromptEncoderConfig(
            hidden_size=16, image_size=32, patch_size=8, mask_input_channels=4
        ).to_dict(),
        mask_decoder_config=SamMaskDecoderConfig(
            hidden_size=16, mlp_dim=32, num_hidden_layers=2, num_attention_heads=2, iou_head_hidden_dim=16
        ).to_dict(),
        initializer_range=0.3,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return (
            torch.randn(1, 3, 32, 32, generator=generator),
            32 * torch.rand(1, 1, 1, 2, generator=generator),
            (torch.rand(1, 1, 1, 16, 16, generator=generator) < 0.5).float(),
        )

    def loss(model: nn.Module, x: Tensor, points: Tensor, wanted: Tensor) -> Tensor:
        masks = model(pixel_values=x, input_points=points, multimask_output=False).pred_masks
        return F.binary_cross_entropy_with_logits(masks, wanted)

    return Subject(SamModel(config), batch, loss)


@zoo
def hubert() -> Subject:
    from transformers import HubertConfig, HubertForSequenceClassification

    config = HubertConfig(
        conv_dim=(16, 16),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_labels=3,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        mask_time_prob=0.0,
        classifier_proj_size=16,
        **SMALL,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        return (*floats((2, 400))(seed), torch.tensor([0, 2]))

    return Subject(
        HubertForSequenceClassification(config), batch, lambda model, x, y: model(input_values=x, labels=y).loss
    )
