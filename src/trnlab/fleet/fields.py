# SPDX-License-Identifier: Apache-2.0
"""The fields of a model's configuration, read and checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trnlab.errors import UsageError

Config = Mapping[str, Any]
_MISSING = object()
BY_SCRIPT = (
    "`trnlab plan --script train.py` plans what a script trains as it is; `trnlab estimate train.py` times one step"
)


def wrong(name: str, why: str) -> UsageError:
    """TRN172."""
    return UsageError(
        f"{name} describes no model: {why}", code="TRN172", limit="the fields of its model_type",
        got=name, remedy="start from a config.json of Hugging Face, or from a name",
    )  # fmt: skip


class Fields:
    """The fields of a configuration, each with a check of what it is."""

    def __init__(self, config: Config, name: str) -> None:
        self.config, self.name = config, name

    def count(self, field: str, default: object = _MISSING, least: int = 1) -> int:
        """A whole number, at least `least`."""
        value = self.config.get(field)
        if value is None:
            value = default
        if value is _MISSING:
            raise wrong(self.name, f"{field} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise wrong(self.name, f"{field} is {value!r}, not a whole number from {least}")
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
            raise UsageError(
                f"{self.name} has {field} {value!r}, which no stage is made with", code="TRN586", got=str(value),
                limit=", ".join(known), remedy=BY_SCRIPT,
            )  # fmt: skip
        return str(value)

    @property
    def source(self) -> str:
        """Where the figures are from."""
        return str(self.config.get("source", self.name))

    def head(self, hidden: int, heads: int) -> int:
        """The size of a head."""
        if self.config.get("head_dim") is None and hidden % heads:
            raise wrong(self.name, f"{heads} heads do not divide a hidden size of {hidden}")
        return self.count("head_dim", hidden // heads)
