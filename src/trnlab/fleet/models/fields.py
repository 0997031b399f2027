# SPDX-License-Identifier: Apache-2.0
"""The fields of a model's configuration, read and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trnlab.errors import UsageError

Config = Mapping[str, Any]
_MISSING = object()
MOST = 1 << 40  # of anything that a model has
BY_SCRIPT = (
    "`trnlab plan --script train.py` plans what a script trains as it is; `trnlab estimate train.py` times one step"
)

FAMILIES = {  # what is no stack of blocks, by how its name or model_type begins
    "convolutions": ("convnext", "efficientnet", "mobilenet", "regnet", "densenet", "vgg", "inception"),
    "a U-Net of an unknown form": ("unet", "u-net", "stable-diffusion", "sdxl", "diffusion"),
    "tables of embeddings of an unknown form": ("dlrm", "deepfm", "dcn"),
    "windows of attention": ("swin",),
    "recurrent layers": ("mamba", "rwkv", "recurrent", "falcon_mamba"),
    "an encoder of sound behind seven convolutions": ("wav2vec2", "hubert", "wavlm"),
}


def wrong(name: str, why: str) -> UsageError:
    """TRN172."""
    return UsageError(
        f"{name} describes no model: {why}",
        code="TRN172",
        limit="the fields of its model_type",
        got=name,
        remedy="start from a config.json of Hugging Face, or from a name",
    )


def _unknown_form(name: str, field: str, value: object, known: Collection[object]) -> UsageError:
    return UsageError(
        f"{name} has {field} {value!r}, which no stage is made with",
        code="TRN586",
        got=str(value),
        limit=", ".join(map(str, known)),
        remedy=BY_SCRIPT,
    )


def unread(kind: str, name: str) -> UsageError | None:
    """TRN585 where something begins like a family that is no stack of blocks."""
    for made, names in FAMILIES.items():
        if re.match("|".join(map(re.escape, names)), kind.lower()):
            return UsageError(
                f"{name} is made of {made}, not of a stack of transformer blocks",
                code="TRN585",
                got=kind,
                limit="stacks of transformer blocks",
                remedy=BY_SCRIPT,
            )
    return None


def unknown(kind: str, name: str, known: Sequence[str]) -> UsageError:
    """TRN585, of a model_type that nothing is known of."""
    return UsageError(
        f"nothing is known of the blocks of {name}: its model_type is {kind!r}",
        code="TRN585",
        got=kind,
        limit=f"model_type one of {', '.join(known)}",
        remedy=BY_SCRIPT,
    )


class ConfigurationFields:
    """The fields of a configuration, each with a check of what it is."""

    def __init__(self, config: Config, name: str) -> None:
        self.config, self.name = config, name

    def count(self, field: str, default: object = _MISSING, least: int = 1, most: int = MOST) -> int:
        """A whole number from `least` to `most`."""
        value = self.config.get(field)
        if value is None:
            value = default
        if value is _MISSING:
            raise wrong(self.name, f"{field} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise wrong(self.name, f"{field} is {value!r}, not a whole number from {least}")
        if value > most:
            raise wrong(self.name, f"{field} is {value!r:.40}, and {most:,} at most")
        return value

    def counts(self, field: str) -> tuple[int, ...]:
        """A list of whole numbers, each at least 1."""
        values = self.config.get(field)
        if not isinstance(values, list) or not values or not all(type(n) is int and n > 0 for n in values):
            raise wrong(self.name, f"{field} is {values!r}, not a list of whole numbers from 1")
        return tuple(values)

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self.config.get(field, default)
        if not isinstance(value, bool):
            raise wrong(self.name, f"{field} is {value!r}, not true or false")
        return value

    def word(self, field: str, default: str, known: Collection[str]) -> str:
        """One of the words that are known of a field. Raises UsageError (TRN586) for another."""
        value = self.config.get(field, default)
        if value not in known:
            raise _unknown_form(self.name, field, value, known)
        return str(value)

    def words(self, field: str, default: list[str], known: Collection[str]) -> tuple[str, ...]:
        """A list of words that are known of a field. Raises UsageError (TRN172) for no list, TRN586 for others."""
        values = self.config.get(field, default)
        if not isinstance(values, list):
            raise wrong(self.name, f"{field} is {values!r}, not a list")
        return tuple(ConfigurationFields({field: value}, self.name).word(field, "", known) for value in values)

    def one_of(self, field: str, known: Collection[object]) -> None:
        """A field that may be missing, and else has a value that is known. Raises UsageError (TRN586) for another."""
        if field in self.config and self.config[field] not in known:
            raise _unknown_form(self.name, field, self.config[field], known)

    def each(self, field: str, default: int, count: int) -> tuple[int, ...]:
        """A whole number for each of so many, which may all have the same."""
        value = self.config.get(field, default)
        found = self.counts(field) if isinstance(value, list) else (self.count(field, default),) * count
        if len(found) != count:
            raise wrong(self.name, f"{field} is {value!r}, not {count} whole numbers")
        return found

    def amount(self, field: str, default: float) -> float:
        """A number from 0; the default where it is missing or null."""
        value = self.config.get(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise wrong(self.name, f"{field} is {value!r}, not a number from 0")
        return float(value)

    def part(self, field: str, default: float, whole: int) -> int:
        """The even number that is such a part of a whole, from the field or from `rope_parameters`."""
        rope = self.config.get("rope_parameters")
        given = rope if isinstance(rope, Mapping) and "partial_rotary_factor" in rope else {}
        value = ConfigurationFields({**given, **self.config}, self.name).amount(
            field if field in self.config else "partial_rotary_factor", default
        )
        size = int(value * whole)
        if not 0 < size <= whole or size % 2:
            raise wrong(self.name, f"{field} is {value!r}, which gives {size} of {whole} columns positions")
        return size

    @property
    def source(self) -> str:
        """Where the figures are from."""
        return str(self.config.get("source", self.name))

    def head(self, hidden: int, heads: int) -> int:
        """The size of a head."""
        if self.config.get("head_dim") is None and hidden % heads:
            raise wrong(self.name, f"{heads} heads do not divide a hidden size of {hidden}")
        return self.count("head_dim", hidden // heads)
