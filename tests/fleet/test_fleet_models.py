# SPDX-License-Identifier: Apache-2.0
"""Models have as many parameters as the tensors of their public implementations, and configurations are checked."""

from __future__ import annotations

import json

import pytest

from trnlab.errors import UsageError
from trnlab.fleet.configurations import catalogue, from_config, model

# Counted on the meta device with transformers 5: sum(p.numel() for p in model.parameters()).
PARAMETERS = {
    "gpt3-125m": 125226240, "gpt3-175b": 174604259328, "gpt2": 124439808, "llama2-7b": 6738415616,
    "llama2-13b": 13015864320, "llama2-70b": 68976648192, "llama3-8b": 8030261248, "llama3-70b": 70553706496,
    "llama3-405b": 405853388800, "mistral-7b": 7241732096, "mixtral-8x7b": 46702792704, "qwen3-8b": 8190735360,
    "qwen3-32b": 32762123264, "qwen3-30b-a3b": 30532122624, "deepseek-v3": 671026404352, "bert-base": 109514298,
    "bert-large": 335174458, "vit-base": 86567656, "vit-large": 304326632, "vit-huge": 632045800,
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_implementation(name):
    assert model(name).parameters == PARAMETERS[name]


BILLIONS = [("mixtral-8x7b", 12.88), ("deepseek-v3", 37.55), ("qwen3-30b-a3b", 3.35)]


@pytest.mark.parametrize(("name", "billions"), BILLIONS)
def test_parameters_that_a_token_meets(name, billions):
    """As their model cards say, 12.9, 37 and 3.3 (which leaves the embedding out)."""
    assert model(name).used / 1e9 == pytest.approx(billions, abs=0.005)


def test_every_model_of_the_catalogue_can_be_read():
    for name in catalogue():
        found = model(name)
        assert found.layers > 0
        assert found.used <= found.parameters
        assert found.flops_per_token(2048) > 6 * (found.used - found.embedding_parameters)


def test_a_config_file_is_read(tmp_path):
    file = tmp_path / "small" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(dict(catalogue()["llama3-8b"], num_hidden_layers=4)))
    found = model(str(file))
    assert (found.name, found.layers) == ("small", 4)


WRONG = [
    ({"model_type": "resnet"}, "model_type is 'resnet'"),
    ({"hidden_size": "4096"}, "hidden_size is '4096'"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_attention_heads": 33}, "33 heads do not divide"),
    ({"num_key_value_heads": 5}, "5 heads of keys"),
    ({"vocab_size": None}, "vocab_size is missing"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_a_configuration_that_describes_no_model(changes, said):
    config = {**catalogue()["llama3-8b"], **changes}
    with pytest.raises(UsageError, match="TRN172") as caught:
        from_config(config, "mine")
    assert said in str(caught.value)


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
