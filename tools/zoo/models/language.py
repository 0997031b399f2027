# SPDX-License-Identifier: Apache-2.0
"""Models of transformers: text, speech, and images as text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tools.zoo.models.base import (
    QUIET,
    SMALL,
    Subject,
    classified,
    floats,
    images,
    language,
    masked_language,
    padded_tokens,
    tokens,
    zoo,
)


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
    return Subject(GPT2LMHeadModel(config), tokens(128, 2, 16), language)


@zoo
def bert_masked_language() -> Subject:
    from transformers import BertConfig, BertForMaskedLM

    return Subject(
        BertForMaskedLM(BertConfig(vocab_size=128, **SMALL, **QUIET)), padded_tokens(128, 2, 16), masked_language
    )


@zoo
def bert_classification() -> Subject:
    from transformers import BertConfig, BertForSequenceClassification

    def batch(seed: int) -> tuple[Tensor, ...]:
        ids, mask = padded_tokens(128, 4, 16)(seed)
        return ids, mask, ids[:, 0] % 3

    def loss(model: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return model(input_ids=ids, attention_mask=mask, labels=labels).loss

    config = BertConfig(vocab_size=128, num_labels=3, **SMALL, **QUIET)
    return Subject(BertForSequenceClassification(config), batch, loss)


@zoo
def roberta() -> Subject:
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(vocab_size=128, pad_token_id=1, max_position_embeddings=40, **SMALL, **QUIET)
    return Subject(RobertaForMaskedLM(config), padded_tokens(128, 2, 16), masked_language)


@zoo
def distilbert() -> Subject:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = DistilBertConfig(
        vocab_size=128, dim=32, n_layers=2, n_heads=4, hidden_dim=64, dropout=0.0, attention_dropout=0.0
    )
    return Subject(DistilBertForMaskedLM(config), padded_tokens(128, 2, 16), masked_language)


@zoo
def llama() -> Subject:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=128, num_key_value_heads=2, **SMALL)
    return Subject(LlamaForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def llama_padded() -> Subject:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=128, num_key_value_heads=2, **SMALL)
    return Subject(LlamaForCausalLM(config), padded_tokens(128, 2, 16), masked_language)


@zoo
def qwen3() -> Subject:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(vocab_size=128, num_key_value_heads=2, head_dim=8, **SMALL)
    return Subject(Qwen3ForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def gemma3() -> Subject:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(vocab_size=128, num_key_value_heads=2, head_dim=8, sliding_window=8, **SMALL)
    return Subject(Gemma3ForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def mistral_sliding_window() -> Subject:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(vocab_size=128, num_key_value_heads=2, sliding_window=8, **SMALL)
    return Subject(MistralForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def mixtral() -> Subject:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(vocab_size=128, num_key_value_heads=2, num_local_experts=4, **SMALL)
    return Subject(MixtralForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def qwen3_experts() -> Subject:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=128,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        **SMALL,
    )
    return Subject(Qwen3MoeForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def t5() -> Subject:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=128,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return Subject(
        T5ForConditionalGeneration(config),
        tokens(128, 2, 16),
        lambda model, ids: model(input_ids=ids, labels=ids[:, :8].contiguous(), use_cache=False).loss,
    )


@zoo
def whisper() -> Subject:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=128,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=20,
        max_target_positions=20,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        return (*floats((2, 16, 40))(seed), *tokens(128, 2, 8)(seed))

    return Subject(
        WhisperForConditionalGeneration(config),
        batch,
        lambda model, sound, ids: model(input_features=sound, labels=ids, use_cache=False).loss,
    )


@zoo
def vit() -> Subject:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=32, patch_size=8, num_labels=10, **SMALL, **QUIET)
    return Subject(ViTForImageClassification(config), images(32), classified)


@zoo
def clip() -> Subject:
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    config = CLIPConfig(
        text_config=CLIPTextConfig(
            vocab_size=128, max_position_embeddings=16, eos_token_id=127, bos_token_id=0, projection_dim=16, **SMALL
        ).to_dict(),
        vision_config=CLIPVisionConfig(image_size=32, patch_size=8, projection_dim=16, **SMALL).to_dict(),
        projection_dim=16,
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        return (*tokens(128, 4, 12)(seed), images(32)(seed)[0])

    return Subject(
        CLIPModel(config), batch, lambda model, ids, x: model(input_ids=ids, pixel_values=x, return_loss=True).loss
    )


@zoo
def swin() -> Subject:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
        drop_path_rate=0.0,
    )
    return Subject(SwinForImageClassification(config), images(32), classified)


@zoo
def wav2vec2() -> Subject:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
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
        Wav2Vec2ForSequenceClassification(config), batch, lambda model, x, y: model(input_values=x, labels=y).loss
    )


@zoo
def mamba() -> Subject:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=128, hidden_size=16, state_size=4, num_hidden_layers=2, use_mambapy=False)
    return Subject(MambaForCausalLM(config), tokens(128, 2, 8), language)


@zoo
def llama_lora() -> Subject:
    """Low-rank adapters of peft on attention; all else is frozen."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=128, num_key_value_heads=2, **SMALL)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")
    return Subject(get_peft_model(LlamaForCausalLM(config), adapters), tokens(128, 2, 16), language)
