# SPDX-License-Identifier: Apache-2.0
"""Models of diffusers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.zoo.models.base import Subject, floats, zoo


@zoo
def unet() -> Subject:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        norm_num_groups=4,
        attention_head_dim=4,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        x, text, noise = floats((2, 4, 8, 8), (2, 6, 16), (2, 4, 8, 8))(seed)
        return x, torch.tensor([3, 7]), text, noise

    return Subject(model, batch, lambda net, x, t, text, noise: F.mse_loss(net(x, t, text).sample, noise))


@zoo
def autoencoder() -> Subject:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        latent_channels=2,
        sample_size=16,
    )
    return Subject(model, floats((1, 3, 16, 16)), lambda net, x: F.mse_loss(net(x).sample, x))


@zoo
def diffusion_transformer() -> Subject:
    """DiT: scales and shifts from a class and a time, without the labels that it drops at random."""
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        num_embeds_ada_norm=10,
    )
    for part in model.modules():
        if hasattr(part, "dropout_prob"):
            part.dropout_prob = 0.0

    def batch(seed: int) -> tuple[Tensor, ...]:
        x, noise = floats((2, 4, 8, 8), (2, 4, 8, 8))(seed)
        return x, torch.tensor([3, 7]), torch.tensor([1, 4]), noise

    return Subject(
        model, batch, lambda net, x, t, y, noise: F.mse_loss(net(x, timestep=t, class_labels=y).sample, noise)
    )


@zoo
def stable_diffusion_3() -> Subject:
    """Its transformer: image and text in one attention."""
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=16,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=8,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        x, text, pooled, noise = floats((2, 4, 8, 8), (2, 6, 16), (2, 16), (2, 4, 8, 8))(seed)
        return x, text, pooled, torch.tensor([3, 7]), noise

    return Subject(
        model,
        batch,
        lambda net, x, text, pooled, t, noise: F.mse_loss(
            net(x, encoder_hidden_states=text, pooled_projections=pooled, timestep=t).sample, noise
        ),
    )
