# SPDX-License-Identifier: Apache-2.0
"""All figures of a chip by path, such as "dma.engine_bandwidth", and chips as TOML without loss."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from trnlab.chips.spec import FEATURES, Chip, Confidence, Figure
from trnlab.errors import UsageError, did_you_mean


def figures(chip: Chip) -> Iterator[tuple[str, Figure]]:
    """Every figure with its path, in the order of the description."""
    yield from _walk(chip, "")


def assumed(chip: Chip) -> list[tuple[str, Figure]]:
    """The figures that rest on nothing published."""
    return [(path, figure) for path, figure in figures(chip) if figure.confidence is Confidence.ASSUMED]


def with_figures(chip: Chip, changes: Mapping[str, float | Figure]) -> Chip:
    """The chip with some figures changed, for what-ifs; a bare number becomes an assumed figure that says so.

    Raises UsageError for a path that the chip does not have.
    """
    known = dict(figures(chip))
    for path, value in changes.items():
        if path not in known:
            raise UsageError(
                f"chip {chip.name!r} has no figure {path!r}",
                code="TRN102",
                got=path,
                remedy=did_you_mean(path, known, f"`trnlab chips {chip.name}` lists them"),
            )
        if not isinstance(value, Figure):
            old = known[path]
            value = Figure(value, old.unit, Confidence.ASSUMED, f"what-if, instead of {old.value:g}")
        known[path] = value
    changed = _build(type(chip), known, _plain(chip), "")
    assert isinstance(changed, Chip)
    return changed


def with_cores_at_work(chip: Chip, cores: int) -> Chip:
    """The chip as one core sees it while `cores` cores of its stack of HBM are at work: its share of the bandwidth.

    Descriptions give the share of a core whose neighbours are all at work, and what it has alone; between them the
    stack's bandwidth is divided by the number of cores.
    """
    share = max(chip.hbm.alone.value / cores, chip.hbm.bandwidth.value)
    source = f"{cores} at work on a stack of {chip.hbm.alone.value:g} byte/s"
    return with_figures(chip, {"hbm.bandwidth": Figure(share, "byte/s", Confidence.DERIVED, source)})


def to_toml(chip: Chip) -> str:
    """The chip as TOML; `from_toml` gives back an equal one."""
    lines = [f"{name} = {_toml(value)}" for name, value in _plain(chip).items()]
    for path, figure in figures(chip):
        lines += ["", f"[figures.{_toml(path)}]"]
        lines += [f"{field} = {_toml(value)}" for field, value in figure._asdict().items()]
    return "\n".join(lines) + "\n"


def from_toml(text: str) -> Chip:
    """A chip from what `to_toml` wrote. Raises UsageError for text that describes no chip."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
        table = {
            path: Figure(f["value"], f["unit"], Confidence(f["confidence"]), f["source"])
            for path, f in data.pop("figures").items()
        }
        for feature in data["features"]:
            FEATURES[feature]
        data["features"] = frozenset(data["features"])
        chip = _build(Chip, table, data, "")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(
            "this TOML does not describe a chip",
            code="TRN103",
            got=f"{type(error).__name__}: {error}",
            remedy="start from the output of `trnlab chips NAME --toml`",
        ) from error
    assert isinstance(chip, Chip)
    return chip


def _walk(node: Any, prefix: str) -> Iterator[tuple[str, Figure]]:
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Figure):
            yield prefix + field.name, value
        elif dataclasses.is_dataclass(value):
            yield from _walk(value, f"{prefix}{field.name}.")


def _plain(chip: Chip) -> dict[str, Any]:
    """The fields of the chip itself that are not figures."""
    values = {field.name: getattr(chip, field.name) for field in dataclasses.fields(chip)}
    return {k: v for k, v in values.items() if not isinstance(v, Figure) and not dataclasses.is_dataclass(v)}


_HINTS: dict[type[Any], dict[str, Any]] = {}  # the same few classes for every chip that is derived


def _build(cls: type[Any], table: Mapping[str, Figure], plain: Mapping[str, Any], prefix: str) -> Any:
    hints = _HINTS.get(cls) or _HINTS.setdefault(cls, get_type_hints(cls))
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        kind, path = hints[field.name], prefix + field.name
        if kind is Figure:
            values[field.name] = table[path]
        elif dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            values[field.name] = _build(kind, table, plain, f"{path}.")
        else:
            values[field.name] = plain[field.name]
    return cls(**values)


def _toml(value: Any) -> str:
    if isinstance(value, frozenset):
        return "[" + ", ".join(json.dumps(item) for item in sorted(value)) + "]"
    if isinstance(value, str):
        return json.dumps(str(value))
    return repr(value)
