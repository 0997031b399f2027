# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that continue a text."""

from __future__ import annotations

from tools.zoo.models.base import SMALL, Subject, language, tokens, zoo


@zoo
def gemma() -> Subject:
    from transformers import GemmaConfig, GemmaForCausalLM

    config = GemmaConfig(vocab_size=128, num_key_value_heads=2, head_dim=8, **SMALL)
    return Subject(GemmaForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def gemma2() -> Subject:
    """Caps on scores and logits, and every second layer with a window."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(vocab_size=128, num_key_value_heads=2, head_dim=8, sliding_window=8, **SMALL)
    return Subject(Gemma2ForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def phi() -> Subject:
    from transformers import PhiConfig, PhiForCausalLM

    return Subject(PhiForCausalLM(PhiConfig(vocab_size=128, **SMALL)), tokens(128, 2, 16), language)


@zoo
def phi3() -> Subject:
    from transformers import Phi3Config, Phi3ForCausalLM

    config = Phi3Config(
        vocab_size=128, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, **SMALL
    )
    return Subject(Phi3ForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def opt() -> Subject:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=128,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        dropout=0.0,
        max_position_embeddings=32,
        word_embed_proj_dim=32,
    )
    return Subject(OPTForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def falcon() -> Subject:
    """One key and value for all heads, attention beside the other half of the layer."""
    from transformers import FalconConfig, FalconForCausalLM

    config = FalconConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    return Subject(FalconForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def falcon_alibi() -> Subject:
    """Distances instead of positions."""
    from transformers import FalconConfig, FalconForCausalLM

    config = FalconConfig(
        vocab_size=128,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        alibi=True,
        multi_query=False,
        parallel_attn=False,
        bias=True,
    )
    return Subject(FalconForCausalLM(config), tokens(128, 2, 16), language)


@zoo
def gpt_neox() -> Subject:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return Subject(GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=128, **SMALL)), tokens(128, 2, 16), language)
