# SPDX-License-Identifier: Apache-2.0
"""Language models that read a text, and those that then write one."""

from __future__ import annotations

from typing import Any

from tools.sweep.models.decoders import RECOMPUTED
from tools.sweep.script import TrainingScript, add

BATCH = """
    input_ids = torch.randint(5, config.vocab_size, (batch_size, length))
    lengths = torch.randint(length // 2, length + 1, (batch_size, 1))
    attention_mask = (torch.arange(length) < lengths).long()
    labels = torch.where(torch.rand(batch_size, length) < 0.15, input_ids, -100)
    input_ids, attention_mask, labels = (x.to("neuron") for x in (input_ids, attention_mask, labels))
"""
LOSS = "loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss"
_TRANSLATED = """
    input_ids = torch.randint(5, config.vocab_size, (batch_size, {source})).to("neuron")
    labels = torch.randint(5, config.vocab_size, (batch_size, length)).to("neuron")
"""


def _masked(name: str, kind: str, given: str, count: int = 8, length: int = 512, **how: Any) -> None:
    head = how.pop("head", f"{kind}ForMaskedLM")
    build = f"""
        from transformers import {kind}Config, {head}
        config = {kind}Config({given})
        model = {head}(config)
    """
    add(name, TrainingScript(build, BATCH, LOSS, batch_size=count, length=length, **how))


def _translating(name: str, kind: str, given: str, count: int = 4, length: int = 512, **how: Any) -> None:
    build = f"""
        from transformers import {kind}Config, {kind}ForConditionalGeneration
        config = {kind}Config({given})
        model = {kind}ForConditionalGeneration(config)
    """
    target = how.pop("target", length)  # what a report counts: words that are learned from
    batch = _TRANSLATED.format(source=length)
    loss = "loss = model(input_ids=input_ids, labels=labels).loss"
    add(name, TrainingScript(build, batch, loss, batch_size=count, length=target, **how))


_masked("bert_base", "Bert", "num_hidden_layers=3")
_masked(
    "bert_large_bf16",
    "Bert",
    "hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=3",
    precision="bfloat16",
    checkpoint=RECOMPUTED,
)
_masked("roberta_base", "Roberta", "vocab_size=50265, max_position_embeddings=514, num_hidden_layers=3")
_masked("distilbert", "DistilBert", "n_layers=3", accumulate=2)
_masked(
    "albert_base", "Albert", "hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=3"
)
_masked("electra_small", "Electra", "num_hidden_layers=3")
_masked(
    "deberta_v3_base",
    "DebertaV2",
    "vocab_size=128100, hidden_size=768, num_hidden_layers=1,"
    " num_attention_heads=12, intermediate_size=3072, relative_attention=True, position_buckets=256,"
    ' pos_att_type=["p2c", "c2p"], share_att_key=True, norm_rel_ebd="layer_norm", type_vocab_size=0',
    count=2,
)
_masked("modernbert_base", "ModernBert", "num_hidden_layers=4", length=1024, count=4)
_masked("mpnet_base", "MPNet", "num_hidden_layers=2")
_masked("xlm_roberta", "XLMRoberta", "vocab_size=250002, max_position_embeddings=514, num_hidden_layers=2", count=4)
_masked("longformer", "Longformer", "num_hidden_layers=1, attention_window=256", length=1024, count=1)
_masked("big_bird", "BigBird", "num_hidden_layers=1", length=1024, count=1)
_masked("funnel", "Funnel", "block_sizes=[1, 1, 1], num_decoder_layers=1", count=2)
_masked("fnet", "FNet", "num_hidden_layers=2", count=4, precision="float32")
_masked("squeezebert", "SqueezeBert", "num_hidden_layers=2", count=4)
_masked(
    "esm2_35m",
    "Esm",
    "vocab_size=33, hidden_size=480, num_attention_heads=20, intermediate_size=1920,"
    ' num_hidden_layers=3, position_embedding_type="rotary", pad_token_id=1, mask_token_id=32',
    count=8,
)
_translating(
    "t5_base", "T5", "d_model=768, d_ff=3072, num_heads=12, num_layers=2, decoder_start_token_id=0", target=128
)
_translating("mt5_small", "MT5", "num_layers=1, num_decoder_layers=1, decoder_start_token_id=0", count=2, target=128)
_translating(
    "bart_base",
    "Bart",
    "d_model=768, encoder_layers=2, decoder_layers=2, encoder_attention_heads=12,"
    " decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072",
)
_translating("pegasus", "Pegasus", "encoder_layers=1, decoder_layers=1", count=2)
_translating("mbart", "MBart", "vocab_size=250027, encoder_layers=1, decoder_layers=1", count=1)
_translating(
    "led", "LED", "encoder_layers=1, decoder_layers=1, attention_window=256", count=1, length=1024, target=128
)

add(
    "xlnet_base",
    TrainingScript(
        """
        from transformers import XLNetConfig, XLNetLMHeadModel
        config = XLNetConfig(d_model=768, n_head=12, d_inner=3072, n_layer=2)
        model = XLNetLMHeadModel(config)
        """,
        'input_ids = torch.randint(5, config.vocab_size, (batch_size, length)).to("neuron")',
        "loss = model(input_ids=input_ids, labels=input_ids).loss",
        batch_size=4,
        length=512,
    ),
)
