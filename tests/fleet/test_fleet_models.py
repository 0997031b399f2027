# SPDX-License-Identifier: Apache-2.0
"""Models have as many parameters as the tensors of their public implementations, and configurations are checked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trnlab.errors import UsageError
from trnlab.fleet.models.configurations import catalogue, from_config, model
from trnlab.fleet.models.unpartitioned import UnpartitionedModel

# Counted on the meta device with transformers 5: sum(p.numel() for p in model.parameters()).
PARAMETERS = {
    "gpt3-125m": 125226240,
    "gpt3-175b": 174604259328,
    "gpt2": 124439808,
    "llama2-7b": 6738415616,
    "llama2-13b": 13015864320,
    "llama2-70b": 68976648192,
    "llama3-8b": 8030261248,
    "llama3-70b": 70553706496,
    "llama3-405b": 405853388800,
    "mistral-7b": 7241732096,
    "mixtral-8x7b": 46702792704,
    "qwen3-8b": 8190735360,
    "qwen3-32b": 32762123264,
    "qwen3-30b-a3b": 30532122624,
    "qwen3-235b-a22b": 235093634560,
    "deepseek-v3": 671026404352,
    "bert-base": 109514298,
    "bert-large": 335174458,
    "vit-base": 86567656,
    "vit-large": 304326632,
    "vit-huge": 632045800,
    "roberta-large": 355412057,
    "t5-small": 60506624,
    "t5-base": 222903552,
    "t5-large": 737668096,
    "t5-3b": 2851598336,
    "t5-11b": 11307321344,
    "whisper-small": 241734912,
    "whisper-large-v3": 1543490560,
}


# Of configurations, counted likewise (transformers 5.24); the fields that matter of the default configurations of
# Hugging Face's classes, and of pythia-1b, phi-2, falcon-7b, falcon-40b and clip-vit-large-patch14.
COUNTED = [
    (
        "gpt_neox",
        {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 8, "intermediate_size": 8192},
        50304,
        1011781632,
    ),
    (
        "gemma",
        {
            "hidden_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 24576,
        },
        256000,
        8537680896,
    ),
    (
        "gemma2",
        {
            "hidden_size": 2304,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 9216,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        256000,
        2614341888,
    ),
    (
        "gemma3_text",
        {
            "hidden_size": 2304,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 9216,
        },
        262208,
        2628658432,
    ),
    (
        "phi",
        {"hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 10240},
        51200,
        2779683840,
    ),
    (
        "phi3",
        {"hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 8192},
        32064,
        3821079552,
    ),
    (
        "opt",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072},
        50272,
        125239296,
    ),
    ("falcon", {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}, 65024, 6921720704),
    (
        "falcon",
        {
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
        },
        65024,
        41303293952,
    ),
    ("clip_text_model", {}, 49408, 63428096),
    ("clip_vision_model", {}, 0, 87849216),
    (
        "clip_vision_model",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "patch_size": 14,
            "projection_dim": 768,
        },
        0,
        303966208,
    ),
]


@pytest.mark.parametrize(("kind", "fields", "words", "parameters"), COUNTED)
def test_parameters_of_families_are_those_of_the_implementation(kind, fields, words, parameters):
    config = {"model_type": kind, **fields, **({"vocab_size": words} if words else {})}
    assert from_config(config, "one").parameters == parameters


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"model_type": "opt", "word_embed_proj_dim": 256}, "TRN586"),
        ({"model_type": "falcon", "alibi": True}, "TRN586"),
        ({"model_type": "gpt_neox", "rotary_pct": 0.01}, "TRN172"),
        ({"model_type": "gemma2", "attn_logit_softcapping": "much"}, "TRN172"),
        ({"model_type": "clip"}, "TRN172"),
        ({"model_type": "gemma3"}, "TRN172"),
    ],
)
def test_forms_of_families_that_have_no_stage(config, code):
    """What is not computed here is refused, and not counted as something else."""
    sizes = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 64}
    with pytest.raises(UsageError) as error:
        from_config({**sizes, "intermediate_size": 64, "ffn_dim": 64, **config}, "one")
    assert error.value.code == code


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_implementation(name):
    assert model(name).parameters == PARAMETERS[name]


# As the papers and model cards say: BERT-Large 340M with its second task, T5 220M to 11B, Whisper 244M and 1550M.
MILLIONS = {
    "bert-large": 335,
    "roberta-large": 355,
    "vit-large": 304,
    "t5-small": 60,
    "t5-base": 223,
    "t5-large": 738,
    "t5-3b": 2852,
    "t5-11b": 11307,
    "whisper-small": 244,
    "whisper-large-v3": 1550,
}


@pytest.mark.parametrize("name", MILLIONS)
def test_parameters_are_those_that_were_published(name):
    assert model(name).parameters / 1e6 == pytest.approx(MILLIONS[name], rel=0.01)


BILLIONS = [("mixtral-8x7b", 12.88), ("deepseek-v3", 37.55), ("qwen3-30b-a3b", 3.35), ("qwen3-235b-a22b", 22.19)]


@pytest.mark.parametrize(("name", "billions"), BILLIONS)
def test_parameters_that_a_token_meets(name, billions):
    """As their model cards say, 12.9, 37, 3.3 (which leaves the embedding out) and 22."""
    assert model(name).used / 1e9 == pytest.approx(billions, abs=0.005)


def test_every_model_of_the_catalogue_can_be_read():
    for name in catalogue():
        found = model(name)
        assert found.layers > 0 or isinstance(found, UnpartitionedModel)  # a captured script has no stack of layers
        assert found.used <= found.parameters
        if found.decoded:  # of which as much is written as is read, here
            found = replace(found, decoded=2048)
        assert found.flops_per_token(2048) > 6 * (found.used - found.embedding_parameters)


def test_a_config_file_is_read(tmp_path):
    file = tmp_path / "small" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(dict(catalogue()["llama3-8b"], num_hidden_layers=4)))
    found = model(str(file))
    assert (found.name, found.layers) == ("small", 4)


WRONG = [
    ({"model_type": None}, "model_type is None"),
    ({"hidden_size": "4096"}, "hidden_size is '4096'"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_attention_heads": 33}, "33 heads do not divide"),
    ({"num_key_value_heads": 5}, "5 heads of keys"),
    ({"vocab_size": None}, "vocab_size is missing"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    ({"vocab_size": 10**400}, "vocab_size is 1000"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_a_configuration_that_describes_no_model(changes, said):
    config = {**catalogue()["llama3-8b"], **changes}
    with pytest.raises(UsageError, match="TRN172") as caught:
        from_config(config, "mine")
    assert said in str(caught.value)


DISTILBERT = {
    "model_type": "distilbert",
    "dim": 768,
    "n_heads": 12,
    "n_layers": 6,
    "hidden_dim": 3072,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}
T5_1_1 = {
    "model_type": "t5",
    "d_model": 768,
    "num_heads": 12,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 12,
    "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(("config", "count"), [(DISTILBERT, 66985530), (T5_1_1, 247577856)], ids=["distil", "1.1"])
def test_parameters_of_other_forms(config, count):
    assert from_config(config, "mine").parameters == count


def test_classes_of_images_are_those_that_have_names():
    labels = {str(i): f"LABEL_{i}" for i in range(10)}
    config = dict(catalogue()["vit-base"], num_labels=None, id2label=labels)
    assert from_config(config, "mine").classes == 10


FAMILIES = [
    ({"model_type": "convnext"}, "convolutions"),
    ({"_class_name": "UNet2DModel"}, "a U-Net"),
    ({"model_type": "deepfm"}, "tables of embeddings"),
    ({"model_type": "swin"}, "windows of attention"),
    ({"model_type": "perceiver"}, "nothing is known of the blocks"),
]


@pytest.mark.parametrize(("config", "said"), FAMILIES)
def test_what_is_no_stack_of_blocks_is_planned_from_a_script(config, said):
    with pytest.raises(UsageError, match="TRN585") as caught:
        from_config(config, "mine")
    for words in (said, "trnlab plan --script", "trnlab estimate"):
        assert words in str(caught.value)


@pytest.mark.parametrize("name", ["efficientnet-b0", "dcn-v2", "stable-diffusion-3", "unet3d", "wav2vec2-base"])
def test_names_of_such_models_say_so(name):
    with pytest.raises(UsageError, match="TRN585"):
        model(name)


FORMS = [
    (dict(T5_1_1, feed_forward_proj="swish"), "feed_forward_proj 'swish'"),
    (dict(catalogue()["bert-base"], position_embedding_type="relative_key"), "'relative_key'"),
]


@pytest.mark.parametrize(("config", "said"), FORMS)
def test_forms_that_no_stage_has(config, said):
    with pytest.raises(UsageError, match="TRN586") as caught:
        from_config(config, "mine")
    assert said in str(caught.value)
    assert "trnlab plan --script" in str(caught.value)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"])
def test_a_token_takes_no_more_experts_than_there_are(name):
    """Found by damaged files: each of so many experts was an op of the graph."""
    with pytest.raises(UsageError, match="TRN172") as caught:
        from_config(dict(catalogue()[name], num_experts_per_tok=10**20), "mine")
    assert "num_experts_per_tok is 1000" in str(caught.value)


def test_heads_that_do_not_divide_a_whisper():
    with pytest.raises(UsageError, match="TRN172") as caught:
        from_config(dict(catalogue()["whisper-small"], decoder_attention_heads=5), "mine")
    assert "5 heads do not divide" in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00", '"x"'])
def test_a_file_that_is_no_configuration(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(UsageError, match="TRN172"):
        model(str(file))


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UsageError, match="TRN171") as caught:
        model("lama3-8b")
    assert "llama3-8b" in str(caught.value)
