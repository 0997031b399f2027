# SPDX-License-Identifier: Apache-2.0
"""Models from configurations: the catalogue's by name, or a file in JSON, as Hugging Face writes it, or in YAML."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from trnlab.errors import UsageError, did_you_mean
from trnlab.files import json_of
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models.diffusion import unet
from trnlab.fleet.models.families import distilbert, t5, unknown, unread, whisper
from trnlab.fleet.models.fields import Config, Fields, wrong
from trnlab.fleet.models.recommend import dlrm
from trnlab.fleet.models.residual import resnet
from trnlab.fleet.models.transformer import Block, Model

ALIASES = {"unet": "sd15-unet", "stable-diffusion": "sd15-unet", "stable-diffusion-xl": "sdxl-unet"}


def model(name: str) -> Model:
    """The model of this name, or of the configuration in the file of this name.

    Raises UsageError (TRN171) for a name that is neither, TRN172 for a configuration that describes no model, and
    TRN585 for a model of a kind that is planned from a script.
    """
    name = ALIASES.get(name, name)
    path = Path(name)
    if path.suffix in (".json", ".yaml", ".yml"):
        return from_config(_read(path), path.parent.name if path.name == "config.json" else path.stem)
    known = catalogue()
    if name not in known:
        if (kind := unread(name, name)) is not None:
            raise kind
        raise UsageError(
            f"unknown model {name!r}",
            code="TRN171",
            limit=", ".join(known),
            got=name,
            remedy=f"{did_you_mean(name, known)} or give a config.json".strip(),
        )
    return from_config(known[name], name)


@cache
def catalogue() -> dict[str, Config]:
    """The configurations that are known by name."""
    return tomllib.loads(files(__package__).joinpath("models.toml").read_text("utf-8"))


def _read(path: Path) -> Config:
    try:
        text = path.read_text("utf-8")
        found = json_of(text) if path.suffix == ".json" else _yaml(text)
    except (OSError, ValueError) as error:
        raise wrong(str(path), str(error)) from error
    if not isinstance(found, Mapping):
        raise wrong(str(path), "it is not a table of names and values")
    return found


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError("reading YAML takes the package pyyaml (pip install pyyaml), reading JSON none") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error


def from_config(config: Config, name: str) -> Model:
    """The model that a configuration describes. Raises UsageError (TRN172) where it does not describe one,
    TRN585 where it describes one of a kind that is planned from a script, TRN586 one of a form that no stage has."""
    kind = config.get("model_type", config.get("_class_name"))
    if not isinstance(kind, str):
        raise wrong(name, f"its model_type is {kind!r}")
    if kind not in _READERS:
        raise unread(kind, name) or unknown(kind, name, sorted(_READERS))
    return _READERS[kind](Fields(config, name))


def _llama(f: Fields) -> Model:
    """Llama and its like: RMS norms, rotary positions, gated networks, shared heads of keys."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size = f.head(hidden, heads)
    shared = f.count("num_key_value_heads", heads)
    if heads % shared:
        raise wrong(f.name, f"{shared} heads of keys do not divide {heads} heads")
    kind = f.config["model_type"]
    bias = "qkv" if kind == "qwen2" else "all" if f.flag("attention_bias", False) else "none"
    attention = Attention(heads, shared, size, size, bias=bias, norms=kind.startswith("qwen3"))
    return _decoder(f, hidden, ((f.count("num_hidden_layers"), Block(hidden, attention, _network(f))),))


def _network(f: Fields) -> Dense | Experts:
    kind = f.config["model_type"]
    if kind == "mixtral":
        return Experts(f.count("num_local_experts"), f.count("num_experts_per_tok"), f.count("intermediate_size"))
    if kind == "qwen3_moe":
        return Experts(f.count("num_experts"), f.count("num_experts_per_tok"), f.count("moe_intermediate_size"))
    return Dense(f.count("intermediate_size"))


def _deepseek(f: Fields) -> Model:
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    plain, rotary = f.count("qk_nope_head_dim"), f.count("qk_rope_head_dim")
    attention = Attention(
        heads,
        heads,
        plain + rotary,
        f.count("v_head_dim"),
        q_rank=f.count("q_lora_rank", 0, least=0),
        kv_rank=f.count("kv_lora_rank"),
        rope_size=rotary,
    )
    size = f.count("moe_intermediate_size")
    experts = Experts(
        f.count("n_routed_experts"),
        f.count("num_experts_per_tok"),
        size,
        shared=size * f.count("n_shared_experts", 0, least=0),
    )
    layers, dense = f.count("num_hidden_layers"), f.count("first_k_dense_replace", 0, least=0)
    first = Block(hidden, attention, Dense(f.count("intermediate_size")))
    stacks = ((dense, first), (layers - dense, Block(hidden, attention, experts)))
    return _decoder(f, hidden, tuple(stack for stack in stacks if stack[0] > 0))


def _decoder(f: Fields, hidden: int, stacks: tuple[tuple[int, Block], ...]) -> Model:
    return Model(
        f.name,
        hidden,
        stacks,
        f.count("max_position_embeddings", 2048),
        f.count("vocab_size"),
        tied=f.flag("tie_word_embeddings", False),
        source=f.source,
    )


def _gpt2(f: Fields) -> Model:
    hidden, heads = f.count("n_embd"), f.count("n_head")
    size = f.head(hidden, heads)
    attention = Attention(heads, heads, size, size, rope=False, bias="all")
    block = Block(hidden, attention, Dense(f.count("n_inner", 4 * hidden), gated=False, bias=True), "layer")
    positions = f.count("n_positions")
    return Model(
        f.name,
        hidden,
        ((f.count("n_layer"), block),),
        positions,
        f.count("vocab_size"),
        positions,
        tied=True,
        source=f.source,
    )


def _encoder_block(f: Fields) -> tuple[int, Block]:
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size = f.head(hidden, heads)
    attention = Attention(heads, heads, size, size, causal=False, rope=False, bias="all")
    network = Dense(f.count("intermediate_size"), gated=False, bias=True)
    return f.count("num_hidden_layers"), Block(hidden, attention, network, "layer")


def _bert(f: Fields) -> Model:
    f.word("position_embedding_type", "absolute", ("absolute",))
    stack, roberta = _encoder_block(f), f.config["model_type"] != "bert"
    positions = f.count("max_position_embeddings", least=3 if roberta else 1)
    return Model(
        f.name,
        stack[1].hidden,
        (stack,),
        positions - 2 * roberta,
        f.count("vocab_size"),
        positions,
        tied=True,
        types=f.count("type_vocab_size", 2),
        final_norm=False,
        embedding_norm=True,
        transform=True,
        source=f.source,
    )


def _vit(f: Fields) -> Model:
    stack = _encoder_block(f)
    side, patch = f.count("image_size", 224), f.count("patch_size", 16)
    tokens = (side // patch) ** 2 + 1
    return Model(
        f.name,
        stack[1].hidden,
        (stack,),
        tokens,
        positions=tokens,
        patch=patch * patch * f.count("num_channels", 3),
        classes=f.count("num_labels", len(f.config.get("id2label") or ()) or 1000),
        source=f.source,
    )


_READERS: dict[str, Callable[[Fields], Model]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"), _llama),
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), _bert),
    "distilbert": distilbert,
    **dict.fromkeys(("t5", "mt5"), t5),
    "whisper": whisper,
    "vit": _vit,
    "resnet": resnet,
    "UNet2DConditionModel": unet,
    "dlrm": dlrm,
}
