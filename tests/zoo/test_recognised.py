# SPDX-License-Identifier: Apache-2.0
"""The models of Hugging Face are recognised from scripts that train them, as what their configurations describe.

Run by `make zoo`, whose environment has the packages; skipped elsewhere.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from trnlab import chips
from trnlab.cli.check import as_one_of, prepared
from trnlab.estimate.job import NullCommunicator
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.models.captured import recognised
from trnlab.fleet.models.configurations import from_config
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session

MISSING = [name for name in ("transformers",) if importlib.util.find_spec(name) is None]
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"needs {MISSING}")]

SCRIPT = """
import torch
import torch.nn.functional as F
import transformers
from trnlab.frontends.torch import compile_step

model = transformers.{kind}(transformers.{config}(**{fields!r})).to("neuron")

def loss(m, x, y):
    scores = m(x).logits.float()
    return F.cross_entropy(scores.flatten(0, -2), y.flatten())

step = compile_step(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss)
for _ in range(2):
    if {images}:
        step(torch.randn(2, 3, 32, 32, device="neuron"), torch.randint(0, 10, (2,), device="neuron"))
    else:
        ids = torch.randint(0, 192, (2, 32), device="neuron")
        step(ids, ids)
"""
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4}
WORDS = SIZES | {"vocab_size": 192, "max_position_embeddings": 128}
SHARED = WORDS | {"num_key_value_heads": 2, "tie_word_embeddings": False}
MODELS = {  # class, class of its configuration, fields
    "llama": ("LlamaForCausalLM", "LlamaConfig", SHARED),
    "mistral": ("MistralForCausalLM", "MistralConfig", SHARED),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SHARED | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", SHARED | {"head_dim": 32}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 192},
    ),
    "bert": (  # what asks for values of tokens is left out: the scores' kernel looks for padding
        "BertForMaskedLM",
        "BertConfig",
        WORDS | {"type_vocab_size": 2, "pad_token_id": None, "attn_implementation": "eager"},
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        SIZES | {"image_size": 32, "patch_size": 8, "num_labels": 10},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_script_trains_what_its_configuration_describes(name, tmp_path):
    """In all but the length of its sequences, which is the script's own."""
    kind, config, fields = MODELS[name]
    file: Path = tmp_path / "train.py"
    file.write_text(SCRIPT.format(kind=kind, config=config, fields=fields, images=name == "vit"))
    prepared()
    from trnlab.frontends.torch.check.planned import captured

    session = Session(chips.target("trn1.32xlarge"))
    session.cache, session.communicator = None, NullCommunicator(0, 1)
    with as_one_of(Cluster(session.target, 1), session):
        step = captured(Script(file, ()), session)
    found, described = recognised(step), from_config(fields | {"model_type": name}, name)
    assert found.model is not None, found.why
    assert found.model.parameters == described.parameters == step.count
    own = {"name": name, "sequence": described.sequence, "source": described.source}
    assert replace(found.model, **own) == described
