# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that read a text, and of those that then write one."""

from __future__ import annotations

from torch import Tensor, nn

from tools.zoo.models.base import QUIET, SMALL, Subject, masked_language, padded_tokens, tokens, zoo

BOTH = {
    "vocab_size": 128,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 32,
    "dropout": 0.0,
}


def _translated(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, labels=ids[:, :8].contiguous(), use_cache=False).loss


@zoo
def modernbert() -> Subject:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = ModernBertConfig(
        vocab_size=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        global_attn_every_n_layers=2,
        local_attention=8,
        **SMALL,
    )
    return Subject(ModernBertForMaskedLM(config), padded_tokens(128, 2, 16), masked_language)


@zoo
def longformer() -> Subject:
    """Attention in windows, and of the first word with all."""
    from transformers import LongformerConfig, LongformerForSequenceClassification

    config = LongformerConfig(
        vocab_size=128, attention_window=[4, 4], max_position_embeddings=40, num_labels=3, **SMALL, **QUIET
    )

    def batch(seed: int) -> tuple[Tensor, ...]:
        ids, mask = padded_tokens(128, 2, 16)(seed)
        return ids, mask, ids[:, 0] % 3

    return Subject(
        LongformerForSequenceClassification(config),
        batch,
        lambda model, ids, mask, labels: model(input_ids=ids, attention_mask=mask, labels=labels).loss,
    )


@zoo
def big_bird() -> Subject:
    """Attention of blocks with their neighbours, the ends, and some that are drawn once for all."""
    from transformers import BigBirdConfig, BigBirdForMaskedLM

    config = BigBirdConfig(
        vocab_size=128,
        block_size=4,
        num_random_blocks=1,
        max_position_embeddings=64,
        attention_type="block_sparse",
        **SMALL,
        **QUIET,
    )
    return Subject(BigBirdForMaskedLM(config), padded_tokens(128, 2, 32), masked_language)


@zoo
def bart() -> Subject:
    from transformers import BartConfig, BartForConditionalGeneration

    return Subject(BartForConditionalGeneration(BartConfig(**BOTH)), tokens(128, 2, 16), _translated)


@zoo
def pegasus() -> Subject:
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    return Subject(PegasusForConditionalGeneration(PegasusConfig(**BOTH)), tokens(128, 2, 16), _translated)
