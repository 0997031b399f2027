# SPDX-License-Identifier: Apache-2.0
"""Models from configurations: the catalogue's by name, or a file in JSON, as Hugging Face writes it, or in YAML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from trnlab.errors import UsageError, did_you_mean
from trnlab.files import json_of
from trnlab.fleet.models.architectures import READERS
from trnlab.fleet.models.fields import Config, ConfigurationFields, unknown, unread, wrong
from trnlab.fleet.models.transformer import Model

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
    if kind not in READERS:
        raise unread(kind, name) or unknown(kind, name, sorted(READERS))
    return READERS[kind](ConfigurationFields(config, name))
