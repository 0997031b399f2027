# SPDX-License-Identifier: Apache-2.0
"""The models: code of their own packages, tiny sizes, random weights.

Each entry makes a model, a batch from a seed, and a loss function (model, *batch) -> scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Subject:
    """A model with what it is trained on."""

    model: nn.Module
    batch: Callable[[int], tuple[Tensor, ...]]
    loss: Loss


MODELS: dict[str, Callable[[], Subject]] = {}


def zoo(function: Callable[[], Subject]) -> Callable[[], Subject]:
    """Register a model by the name of the function that makes it."""
    MODELS[function.__name__] = function
    return function


def _tokens(vocabulary: int, *shape: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda seed: (torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(seed)),)


def _floats(*shapes: tuple[int, ...]) -> Callable[[int], tuple[Tensor, ...]]:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)

    return batch


def _images(size: int, classes: int = 10, count: int = 4) -> Callable[[int], tuple[Tensor, ...]]:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(count, 3, size, size, generator=generator)
        return images, torch.randint(0, classes, (count,), generator=generator)

    return batch


def _padded_tokens(vocabulary: int, batch: int, length: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Tokens, and a mask that hides the ends of all rows but the first."""

    def make(seed: int) -> tuple[Tensor, ...]:
        ids = torch.randint(1, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))
        lengths = torch.tensor([length - 3 * i for i in range(batch)])
        return ids, (torch.arange(length) < lengths[:, None]).long()

    return make


def _classified(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    out = model(images)
    return F.cross_entropy(getattr(out, "logits", out), labels)


def _language(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def _masked_language(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    return model(input_ids=ids, attention_mask=mask, labels=ids).loss


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


# -- transformers ---------------------------------------------------------------------------------------------------


@zoo
def gpt2() -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=128,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return Subject(GPT2LMHeadModel(config), _tokens(128, 2, 16), _language)


@zoo
def bert_masked_language() -> Subject:
    from transformers import BertConfig, BertForMaskedLM

    return Subject(
        BertForMaskedLM(BertConfig(vocab_size=128, **_SMALL, **_QUIET)), _padded_tokens(128, 2, 16), _masked_language
    )


@zoo
def bert_classification() -> Subject:
    from transformers import BertConfig, BertForSequenceClassification

    def batch(seed: int) -> tuple[Tensor, ...]:
        ids, mask = _padded_tokens(128, 4, 16)(seed)
        return ids, mask, ids[:, 0] % 3

    def loss(model: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return model(input_ids=ids, attention_mask=mask, labels=labels).loss

    config = BertConfig(vocab_size=128, num_labels=3, **_SMALL, **_QUIET)
    return Subject(BertForSequenceClassification(config), batch, loss)


@zoo
def roberta() -> Subject:
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(vocab_size=128, pad_token_id=1, max_position_embeddings=40, **_SMALL, **_QUIET)
    return Subject(RobertaForMaskedLM(config), _padded_tokens(128, 2, 16), _masked_language)


@zoo
def distilbert() -> Subject:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = DistilBertConfig(
        vocab_size=128, dim=32, n_layers=2, n_heads=4, hidden_dim=64, dropout=0.0, attention_dropout=0.0
    )
    return Subject(DistilBertForMaskedLM(config), _padded_tokens(128, 2, 16), _masked_language)


@zoo
def llama() -> Subject:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=128, num_key_value_heads=2, **_SMALL)
    return Subject(LlamaForCausalLM(config), _tokens(128, 2, 16), _language)


@zoo
def llama_padded() -> Subject:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=128, num_key_value_heads=2, **_SMALL)
    return Subject(LlamaForCausalLM(config), _padded_tokens(128, 2, 16), _masked_language)


@zoo
def qwen3() -> Subject:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(vocab_size=128, num_key_value_heads=2, head_dim=8, **_SMALL)
    return Subject(Qwen3ForCausalLM(config), _tokens(128, 2, 16), _language)


@zoo
def gemma3() -> Subject:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(vocab_size=128, num_key_value_heads=2, head_dim=8, sliding_window=8, **_SMALL)
    return Subject(Gemma3ForCausalLM(config), _tokens(128, 2, 16), _language)


@zoo
def mistral_sliding_window() -> Subject:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(vocab_size=128, num_key_value_heads=2, sliding_window=8, **_SMALL)
    return Subject(MistralForCausalLM(config), _tokens(128, 2, 16), _language)


@zoo
def mixtral() -> Subject:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(vocab_size=128, num_key_value_heads=2, num_local_experts=4, **_SMALL)
    return Subject(MixtralForCausalLM(config), _tokens(128, 2, 16), _language)


@zoo
def qwen3_experts() -> Subject:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=128, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, **_SMALL,
    )  # fmt: skip
    return Subject(Qwen3MoeForCausalLM(config), _tokens(128, 2, 16), _language)


@zoo
def t5() -> Subject:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return Subject(
        T5ForConditionalGeneration(config), _tokens(128, 2, 16),
        lambda model, ids: model(input_ids=ids, labels=ids[:, :8].contiguous(), use_cache=False).loss,
    )  # fmt: skip


@zoo
def whisper() -> Subject:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=128, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=20,
        max_target_positions=20, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip

    def batch(seed: int) -> tuple[Tensor, ...]:
        return (*_floats((2, 16, 40))(seed), *_tokens(128, 2, 8)(seed))

    return Subject(
        WhisperForConditionalGeneration(config), batch,
        lambda model, sound, ids: model(input_features=sound, labels=ids, use_cache=False).loss,
    )  # fmt: skip


@zoo
def vit() -> Subject:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=32, patch_size=8, num_labels=10, **_SMALL, **_QUIET)
    return Subject(ViTForImageClassification(config), _images(32), _classified)


@zoo
def clip() -> Subject:
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    config = CLIPConfig(
        text_config=CLIPTextConfig(
            vocab_size=128, max_position_embeddings=16, eos_token_id=127, bos_token_id=0, projection_dim=16, **_SMALL
        ).to_dict(),
        vision_config=CLIPVisionConfig(image_size=32, patch_size=8, projection_dim=16, **_SMALL).to_dict(),
        projection_dim=16,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        return (*_tokens(128, 4, 12)(seed), _images(32)(seed)[0])

    return Subject(
        CLIPModel(config), batch, lambda model, ids, x: model(input_ids=ids, pixel_values=x, return_loss=True).loss
    )


@zoo
def swin() -> Subject:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10,
        drop_path_rate=0.0,
    )  # fmt: skip
    return Subject(SwinForImageClassification(config), _images(32), _classified)


@zoo
def wav2vec2() -> Subject:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
        conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_labels=3,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, hidden_dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0,
        classifier_proj_size=16, **_SMALL,
    )  # fmt: skip

    def batch(seed: int) -> tuple[Tensor, ...]:
        return (*_floats((2, 400))(seed), torch.tensor([0, 2]))

    return Subject(
        Wav2Vec2ForSequenceClassification(config), batch, lambda model, x, y: model(input_values=x, labels=y).loss
    )


@zoo
def mamba() -> Subject:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=128, hidden_size=16, state_size=4, num_hidden_layers=2, use_mambapy=False)
    return Subject(MambaForCausalLM(config), _tokens(128, 2, 8), _language)


# -- vision ---------------------------------------------------------------------------------------------------------


def _torchvision(name: str, size: int = 32, **given: Any) -> Subject:
    import torchvision

    return Subject(getattr(torchvision.models, name)(num_classes=10, **given), _images(size), _classified)


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
    return Subject(model, _images(32), _classified)


@zoo
def convnext() -> Subject:
    import torchvision
    from torchvision.models.convnext import CNBlockConfig

    blocks = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)]
    return Subject(torchvision.models.ConvNeXt(blocks, num_classes=10), _images(32), _classified)


@zoo
def torchvision_swin() -> Subject:
    import torchvision

    model = torchvision.models.SwinTransformer([2, 2], 16, [2, 2], [2, 4], [4, 4], num_classes=10)
    return Subject(model, _images(32), _classified)


@zoo
def timm_vit() -> Subject:
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4, num_classes=10
    )
    return Subject(model, _images(32), _classified)


@zoo
def timm_mixer() -> Subject:
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(img_size=32, patch_size=8, num_blocks=2, embed_dim=32, num_classes=10)
    return Subject(model, _images(32), _classified)


@zoo
def timm_efficientnet() -> Subject:
    import timm

    return Subject(timm.create_model("efficientnet_lite0", num_classes=10), _images(32), _classified)


@zoo
def feature_pyramid() -> Subject:
    """The backbone of a detector: a ResNet with a feature pyramid."""
    import torchvision
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    body = torchvision.models.resnet18()
    model = BackboneWithFPN(body, {"layer1": "0", "layer2": "1"}, [64, 128], 16)
    return Subject(
        model,
        lambda seed: _images(32, count=1)(seed)[:1],
        lambda net, x: sum(v.square().mean() for v in net(x).values()),
    )


# -- diffusion ------------------------------------------------------------------------------------------------------


@zoo
def unet() -> Subject:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=16, norm_num_groups=4,
        attention_head_dim=4,
    )  # fmt: skip

    def batch(seed: int) -> tuple[Tensor, ...]:
        x, text, noise = _floats((2, 4, 8, 8), (2, 6, 16), (2, 4, 8, 8))(seed)
        return x, torch.tensor([3, 7]), text, noise

    return Subject(model, batch, lambda net, x, t, text, noise: F.mse_loss(net(x, t, text).sample, noise))


@zoo
def autoencoder() -> Subject:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4, latent_channels=2, sample_size=16,
    )  # fmt: skip
    return Subject(model, _floats((1, 3, 16, 16)), lambda net, x: F.mse_loss(net(x).sample, x))


# -- as people write them -------------------------------------------------------------------------------------------


class _Recommender(nn.Module):
    def __init__(self, bags: bool) -> None:
        super().__init__()
        kind = nn.EmbeddingBag if bags else nn.Embedding
        self.bags, self.tables = bags, nn.ModuleList([kind(50, 8) for _ in range(3)])
        self.bottom, self.top = nn.Linear(5, 8), nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        parts = [self.bottom(dense)]
        parts += [t(ids[:, i]) if self.bags else t(ids[:, i]).sum(1) for i, t in enumerate(self.tables)]
        stacked = torch.stack(parts, 1)
        pairs = stacked @ stacked.transpose(1, 2)
        rows, cols = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([parts[0], pairs[:, rows, cols]], 1)).squeeze(1)


def _recommender(bags: bool) -> Subject:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        dense, ids = torch.randn(6, 5, generator=generator), torch.randint(0, 50, (6, 3, 4), generator=generator)
        return dense, ids, torch.rand(6, generator=generator).round()

    return Subject(
        _Recommender(bags), batch, lambda net, x, ids, y: F.binary_cross_entropy_with_logits(net(x, ids), y)
    )


@zoo
def dlrm() -> Subject:
    return _recommender(False)


@zoo
def dlrm_bags() -> Subject:
    return _recommender(True)


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(32, 16), kind(16, 24, batch_first=True), nn.Linear(24, 32)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cell(self.table(ids))[0])


def _recurrent(kind: type[nn.RNNBase]) -> Subject:
    return Subject(
        _Recurrent(kind), _tokens(32, 3, 9), lambda net, ids: F.cross_entropy(net(ids[:, :-1]).mT, ids[:, 1:])
    )


@zoo
def lstm() -> Subject:
    return _recurrent(nn.LSTM)


@zoo
def gru() -> Subject:
    return _recurrent(nn.GRU)


@zoo
def rnn() -> Subject:
    return _recurrent(nn.RNN)


class _Graph(nn.Module):
    def __init__(self, reduce: str) -> None:
        super().__init__()
        self.reduce, self.first, self.second = reduce, nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            h = layer(x)
            messages = h[edges[0]]
            if self.reduce == "add":
                x = h + torch.zeros_like(h).index_add(0, edges[1], messages)
            else:
                where = edges[1][:, None].expand_as(messages)
                x = h + torch.zeros_like(h).scatter_reduce(0, where, messages, self.reduce, include_self=False)
            x = F.relu(x) if layer is self.first else x
        return x


def _graph(reduce: str) -> Subject:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        edges = torch.randint(0, 12, (2, 30), generator=generator)
        return torch.randn(12, 8, generator=generator), edges, torch.randint(0, 3, (12,), generator=generator)

    return Subject(_Graph(reduce), batch, lambda net, x, edges, y: F.cross_entropy(net(x, edges), y))


@zoo
def graph_index_add() -> Subject:
    return _graph("add")


@zoo
def graph_scatter_mean() -> Subject:
    return _graph("mean")


@zoo
def graph_scatter_max() -> Subject:
    return _graph("amax")


@zoo
def transformer_with_masks() -> Subject:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)

        def forward(self, x: Tensor, y: Tensor, hidden: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], device=y.device)
            return self.inner(x, y, tgt_mask=mask, src_key_padding_mask=hidden)

    def batch(seed: int) -> tuple[Tensor, ...]:
        x, y = _floats((2, 7, 16), (2, 5, 16))(seed)
        return x, y, torch.tensor([[False] * 7, [False] * 4 + [True] * 3])

    return Subject(Both(), batch, lambda net, x, y, hidden: net(x, y, hidden).square().mean())


@zoo
def batch_normed_mlp() -> Subject:
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 3))
    return Subject(net, _floats((12, 8), (12, 3)), lambda model, x, y: F.mse_loss(model(x), y))


@zoo
def small_convolutional_net() -> Subject:
    """PyTorch's MNIST example."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(576, 10),
    )
    return Subject(net, _images(16), _classified)
