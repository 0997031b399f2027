# SPDX-License-Identifier: Apache-2.0
"""Sound, film, and pictures beside texts."""

from __future__ import annotations

from tools.sweep.script import TrainingScript, add

_PAIRS = """
    images = torch.randn(batch_size, 3, {size}, {size}).to("neuron")
    input_ids = torch.randint(1, 1000, (batch_size, length)).to("neuron")
"""
_CONTRASTED = "loss = model(input_ids=input_ids, pixel_values=images, return_loss=True).loss"

add(
    "whisper_base",
    TrainingScript(
        """
        from transformers import WhisperConfig, WhisperForConditionalGeneration
        config = WhisperConfig(d_model=512, encoder_attention_heads=8, decoder_attention_heads=8,
                               encoder_ffn_dim=2048, decoder_ffn_dim=2048, encoder_layers=2, decoder_layers=2)
        model = WhisperForConditionalGeneration(config)
        """,
        """
        input_features = torch.randn(batch_size, 80, 3000).to("neuron")
        labels = torch.randint(0, config.vocab_size, (batch_size, length)).to("neuron")
        """,
        "loss = model(input_features=input_features, labels=labels).loss",
        batch_size=2,
        length=128,
    ),
)
add(
    "wav2vec2_base",
    TrainingScript(
        """
        from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
        model = Wav2Vec2ForCTC(Wav2Vec2Config(num_hidden_layers=2, mask_time_prob=0.0, layerdrop=0.0))
        """,
        """
        input_values = torch.randn(batch_size, 32000).to("neuron")
        labels = torch.randint(1, 32, (batch_size, 20)).to("neuron")
        """,
        "loss = model(input_values=input_values, labels=labels).loss",
        batch_size=2,
        precision="float32",
    ),
)
add(
    "audio_spectrogram_transformer",
    TrainingScript(
        """
        from transformers import ASTConfig, ASTForAudioClassification
        model = ASTForAudioClassification(ASTConfig(num_hidden_layers=2, num_labels=527))
        """,
        """
        sound = torch.randn(batch_size, 1024, 128).to("neuron")
        labels = torch.rand(batch_size, 527).to("neuron")
        """,
        "loss = F.binary_cross_entropy_with_logits(model(input_values=sound).logits, labels)",
        batch_size=4,
    ),
)
add(
    "clip_vit_b32",
    TrainingScript(
        """
        from transformers import CLIPConfig, CLIPModel
        config = CLIPConfig(text_config={"num_hidden_layers": 3}, vision_config={"num_hidden_layers": 3})
        model = CLIPModel(config)
        """,
        _PAIRS.format(size=224),
        _CONTRASTED,
        batch_size=64,
        length=77,
    ),
)
add(
    "siglip_base",
    TrainingScript(
        """
        from transformers import SiglipConfig, SiglipModel
        config = SiglipConfig(text_config={"num_hidden_layers": 3}, vision_config={"num_hidden_layers": 3})
        model = SiglipModel(config)
        """,
        _PAIRS.format(size=224),
        _CONTRASTED,
        batch_size=32,
        length=64,
        precision="bfloat16",
    ),
)
add(
    "blip_base",
    TrainingScript(
        """
        from transformers import BlipConfig, BlipForConditionalGeneration
        config = BlipConfig(text_config={"num_hidden_layers": 2}, vision_config={"num_hidden_layers": 2})
        model = BlipForConditionalGeneration(config)
        """,
        _PAIRS.format(size=384),
        "loss = model(input_ids=input_ids, pixel_values=images, labels=input_ids).loss",
        batch_size=4,
        length=64,
    ),
)
add(
    "vilt",
    TrainingScript(
        """
        from transformers import ViltConfig, ViltForQuestionAnswering
        model = ViltForQuestionAnswering(ViltConfig(num_hidden_layers=2, num_labels=3129))
        """,
        _PAIRS.format(size=384) + '    labels = torch.rand(batch_size, 3129).to("neuron")\n',
        "loss = model(input_ids=input_ids, pixel_values=images, labels=labels).loss",
        batch_size=4,
        length=40,
    ),
)
add(
    "video_mae",
    TrainingScript(
        """
        from transformers import VideoMAEConfig, VideoMAEForVideoClassification
        model = VideoMAEForVideoClassification(VideoMAEConfig(num_hidden_layers=2, num_labels=400))
        """,
        """
        films = torch.randn(batch_size, 16, 3, 224, 224).to("neuron")
        labels = torch.randint(0, 400, (batch_size,)).to("neuron")
        """,
        "loss = model(pixel_values=films, labels=labels).loss",
        batch_size=2,
    ),
)
add(
    "r3d_18",
    TrainingScript(
        """
        import torchvision
        model = torchvision.models.video.r3d_18(weights=None)
        """,
        """
        films = torch.randn(batch_size, 3, 8, 112, 112).to("neuron")
        labels = torch.randint(0, 400, (batch_size,)).to("neuron")
        """,
        "loss = F.cross_entropy(model(films), labels)",
        batch_size=2,
    ),
)
add(
    "time_series_transformer",
    TrainingScript(
        """
        from transformers import PatchTSTConfig, PatchTSTForPrediction
        config = PatchTSTConfig(num_input_channels=7, context_length=512, patch_length=16, patch_stride=8,
                                prediction_length=96, d_model=128, num_attention_heads=16, ffn_dim=256)
        model = PatchTSTForPrediction(config)
        """,
        """
        past = torch.randn(batch_size, 512, 7).to("neuron")
        future = torch.randn(batch_size, 96, 7).to("neuron")
        """,
        "loss = model(past_values=past, future_values=future).loss",
        batch_size=64,
    ),
)
