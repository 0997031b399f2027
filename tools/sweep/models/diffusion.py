# SPDX-License-Identifier: Apache-2.0
"""Models of diffusers."""

from __future__ import annotations

from typing import Any

from tools.sweep.script import TrainingScript, add

_IMAGE = """
    noise = torch.randn(batch_size, {channels}, {size}, {size}).to("neuron")
    latents = torch.randn(batch_size, {channels}, {size}, {size}).to("neuron")
    timesteps = torch.randint(0, 1000, (batch_size,)).to("neuron")
"""
_TEXT = _IMAGE + '    text = torch.randn(batch_size, {words}, {width}).to("neuron")\n'


def _denoiser(name: str, build: str, batch: str, called: str, count: int, **how: Any) -> None:
    loss = f"loss = F.mse_loss(model({called}).sample.float(), noise.float())"
    if how.get("precision") == "bfloat16":
        batch = batch.replace('.to("neuron")', '.to("neuron", torch.bfloat16)', 2).replace(
            'width}).to("neuron")', 'width}).to("neuron", torch.bfloat16)'
        )
    add(name, TrainingScript(f"import diffusers\n{build}", batch, loss, batch_size=count, **how))


_denoiser(
    "sd15_unet",
    "model = diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8,"
    " layers_per_block=1)",
    _TEXT.format(channels=4, size=32, words=77, width=768),
    "latents, timesteps, text",
    2,
)
_denoiser(
    "ddpm_unet",
    "model = diffusers.UNet2DModel(sample_size=32, block_out_channels=(128, 256, 256, 256), layers_per_block=2,"
    ' down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),'
    ' up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"))',
    _IMAGE.format(channels=3, size=32),
    "latents, timesteps",
    16,
)
_denoiser(
    "dit_xl_2",
    "model = diffusers.DiTTransformer2DModel(num_attention_heads=16, attention_head_dim=72, in_channels=4,"
    " out_channels=4, num_layers=2, sample_size=32)",
    _IMAGE.format(channels=4, size=32) + '    classes = torch.randint(0, 1000, (batch_size,)).to("neuron")\n',
    "latents, timestep=timesteps, class_labels=classes",
    8,
)
_denoiser(
    "pixart",
    "model = diffusers.PixArtTransformer2DModel(sample_size=32, num_layers=2, out_channels=4, caption_channels=4096)",
    _TEXT.format(channels=4, size=32, words=120, width=4096),
    "latents, encoder_hidden_states=text, timestep=timesteps,"
    ' added_cond_kwargs={"resolution": None, "aspect_ratio": None}',
    4,
)
_denoiser(
    "sd3_medium",
    "model = diffusers.SD3Transformer2DModel(sample_size=64, num_layers=2, num_attention_heads=24,"
    " attention_head_dim=64, caption_projection_dim=1536, out_channels=16)",
    _TEXT.format(channels=16, size=64, words=154, width=4096)
    + '    pooled = torch.randn(batch_size, 2048).to("neuron")\n',
    "latents, encoder_hidden_states=text, pooled_projections=pooled, timestep=timesteps",
    1,
)
add(
    "flux_narrow",
    TrainingScript(
        """
        import diffusers
        model = diffusers.FluxTransformer2DModel(num_layers=1, num_single_layers=1, num_attention_heads=12,
                                              guidance_embeds=True)
        """,
        """
        latents = torch.randn(batch_size, 1024, 64).to("neuron")
        noise = torch.randn(batch_size, 1024, 64).to("neuron")
        text = torch.randn(batch_size, 256, 4096).to("neuron")
        pooled = torch.randn(batch_size, 768).to("neuron")
        timesteps = torch.rand(batch_size).to("neuron")
        guidance = torch.ones(batch_size).to("neuron")
        img_ids = torch.zeros(1024, 3).to("neuron")
        txt_ids = torch.zeros(256, 3).to("neuron")
        """,
        """
        out = model(latents, encoder_hidden_states=text, pooled_projections=pooled, timestep=timesteps,
                    guidance=guidance, img_ids=img_ids, txt_ids=txt_ids).sample
        loss = F.mse_loss(out.float(), noise)
        """,
        batch_size=1,
    ),
)
add(
    "vae",
    TrainingScript(
        """
        import diffusers
        model = diffusers.AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=1, latent_channels=4, sample_size=128,
        )
        """,
        'images = torch.randn(batch_size, 3, 128, 128).to("neuron")',
        "loss = F.mse_loss(model(images).sample.float(), images)",
        batch_size=2,
    ),
)
add(
    "vq_model",
    TrainingScript(
        """
        import diffusers
        model = diffusers.VQModel(
            block_out_channels=(128, 256), down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=3, num_vq_embeddings=1024, sample_size=64,
        )
        """,
        'images = torch.randn(batch_size, 3, 64, 64).to("neuron")',
        "loss = F.mse_loss(model(images).sample.float(), images)",
        batch_size=4,
        precision="float32",
    ),
)
