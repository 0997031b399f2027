# SPDX-License-Identifier: Apache-2.0
"""Language models that continue a text."""

from __future__ import annotations

from typing import Any

from tools.sweep.script import TrainingScript, add

BATCH = """
    input_ids = torch.randint(0, config.vocab_size, (batch_size, length)).to("neuron")
"""
LOSS = "loss = model(input_ids=input_ids, labels=input_ids, use_cache=False).loss"
RECOMPUTED = "model.gradient_checkpointing_enable()"


def _causal(name: str, kind: str, given: str, count: int = 4, length: int = 1024, **how: Any) -> None:
    head = how.pop("head", f"{kind}ForCausalLM")
    config = how.pop("config", f"{kind}Config")
    loss = how.pop("loss", LOSS)
    build = f"""
        from transformers import {config}, {head}
        config = {config}({given})
        model = {head}(config)
    """
    add(name, TrainingScript(build, BATCH, loss, batch_size=count, length=length, **how))


_causal("gpt2", "GPT2", "n_layer=4", head="GPT2LMHeadModel")
_causal("gpt2_accumulated", "GPT2", "n_layer=2", head="GPT2LMHeadModel", accumulate=2, checkpoint=RECOMPUTED)
_causal(
    "gpt_neo", "GPTNeo", 'num_layers=2, attention_types=[[["global", "local"], 1]], hidden_size=768, num_heads=12'
)
_causal(
    "pythia_410m",
    "GPTNeoX",
    "hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=3, vocab_size=50304",
    precision="bfloat16",
)
_causal("gptj", "GPTJ", "n_embd=2048, n_head=16, n_layer=2, rotary_dim=64", count=2)
_causal(
    "opt_350m",
    "OPT",
    "hidden_size=1024, word_embed_proj_dim=512, ffn_dim=4096, num_attention_heads=16, num_hidden_layers=3,"
    " do_layer_norm_before=False",
)
_causal(
    "llama_3_2_1b",
    "Llama",
    "vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=2, num_attention_heads=32,"
    " num_key_value_heads=8, rope_theta=500000.0, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2",
    count=1,
    length=2048,
    precision="bfloat16",
    checkpoint=RECOMPUTED,
)
_causal(
    "llama_compiled",
    "Llama",
    "hidden_size=1024, intermediate_size=2816, num_hidden_layers=3, num_attention_heads=16",
    count=2,
    compiled=True,
    precision="float32",
)
_causal(
    "qwen2_5_0_5b",
    "Qwen2",
    "vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=3, num_attention_heads=14,"
    " num_key_value_heads=2, tie_word_embeddings=True",
    count=2,
    precision="bfloat16",
)
_causal(
    "qwen3_0_6b",
    "Qwen3",
    "hidden_size=1024, intermediate_size=3072, num_hidden_layers=3, num_attention_heads=16, num_key_value_heads=8,"
    " head_dim=128, tie_word_embeddings=True",
    count=2,
)
_causal(
    "gemma_2_2b",
    "Gemma2",
    "num_hidden_layers=2, bos_token_id=1, eos_token_id=2",
    count=1,
    precision="bfloat16",
)
_causal(
    "gemma_3_1b",
    "Gemma3Text",
    "hidden_size=1152, intermediate_size=6912, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,"
    " head_dim=256, sliding_window=512",
    count=1,
    config="Gemma3TextConfig",
    head="Gemma3ForCausalLM",
)
_causal("phi_1_5", "Phi", "num_hidden_layers=2", count=2, precision="bfloat16")
_causal(
    "phi_3_mini",
    "Phi3",
    "num_hidden_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2",
    count=1,
    precision="bfloat16",
    length=2048,
)
_causal("mistral_7b", "Mistral", "num_hidden_layers=1", count=1, length=2048, precision="bfloat16")
_causal(
    "mixtral_small",
    "Mixtral",
    "hidden_size=1024, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=4,"
    " num_local_experts=8",
    count=2,
    length=512,
    precision="bfloat16",
)
_causal(
    "olmoe_small",
    "Olmoe",
    "hidden_size=1024, intermediate_size=512, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=16,"
    " num_experts=16, num_experts_per_tok=4",
    count=2,
    length=512,
    precision="bfloat16",
)
_causal("bloom_560m", "Bloom", "vocab_size=250880, hidden_size=1024, n_head=16, n_layer=2", count=2, length=512)
_causal("falcon_1b", "Falcon", "hidden_size=2048, num_attention_heads=32, num_hidden_layers=2, alibi=True", count=1)
_causal("mpt_1b", "Mpt", "d_model=2048, n_heads=16, n_layers=2", count=2)
_causal("mamba_130m", "Mamba", "num_hidden_layers=1, use_mambapy=False", count=1, length=128)
_causal(
    "mamba2_small", "Mamba2", "num_hidden_layers=1, hidden_size=768, num_heads=24, head_dim=64", count=1, length=512
)
_causal("rwkv_169m", "Rwkv", "hidden_size=768, num_hidden_layers=2", count=1, length=32)
_causal(
    "olmo2_1b",
    "Olmo2",
    "hidden_size=2048, intermediate_size=8192, num_hidden_layers=2, num_attention_heads=16",
    count=1,
    precision="bfloat16",
)
_causal(
    "stablelm_1_6b",
    "StableLm",
    "hidden_size=2048, intermediate_size=5632, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=32",
    count=1,
)
_causal(
    "granite_small",
    "Granite",
    "hidden_size=2048, intermediate_size=8192, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8",
    count=1,
)
_causal("codegen_350m", "CodeGen", "n_embd=1024, n_head=16, n_layer=2, rotary_dim=32", count=2)
