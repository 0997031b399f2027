# SPDX-License-Identifier: Apache-2.0
"""In which number format which part of a model computes: the modes of a run, and rules for single modules.

    trnlab run --precision fp8 --precision-rules rules.toml train.py

A rule file, in TOML; the first rule whose pattern fits a module decides, and what no rule names is left to the mode:

    history = 16                       # steps that a delayed scale looks back on
    [[rule]]
    modules = ["h.0", "h.*.attn"]      # fnmatch patterns of module names; what lies in a module follows it
    format = "bf16"                    # fp32, bf16, fp8, mxfp8
    [[rule]]
    modules = "*"
    format = "fp8"
    scaling = "row"                    # of fp8: delayed, tensor, row

Nothing here computes: `graph.passes.quantize` makes of it what the graph says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trnlab.errors import UsageError

# Mode of a run: the format of matmul operands that no rule and no cast of the script decides otherwise.
MODES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp32": "float32",
    "bf16-all": "bfloat16",
    "fp8": "float8_e4m3",
    "mxfp8": "float8_e4m3fn_x4",
}
FORMATS = ("fp32", "bf16", "fp8", "mxfp8")  # of a module
SCALINGS = ("delayed", "tensor", "row")
EVERYTHING = "bf16-all"
# The first and the last layer, which libraries leave in 16 bits, too: the example filter of torchao leaves out the
# last (torchao/float8/README.md). Norms multiply no matrices, and stay as they are.
SENSITIVE = ("*embed*", "*wte", "*wpe", "*lm_head", "*head", "*classifier", "*score", "*cls")


@dataclass(frozen=True)
class ModulePrecision:
    """What becomes of a module's products. scaling: of fp8."""

    format: str
    scaling: str = "delayed"

    @property
    def is_scaled(self) -> bool:
        """Whether operands are divided by a scale."""
        return self.format in ("fp8", "mxfp8")


@dataclass(frozen=True)
class PrecisionRule:
    """Modules by patterns, and their format."""

    modules: tuple[str, ...]
    choice: ModulePrecision

    def fits(self, module: str) -> str | None:
        """The pattern that names the module, or one around it; None when there is none."""
        names = _around(module)
        return next((p for p in self.modules if any(fnmatchcase(name, p) for name in names)), None)


@dataclass(frozen=True)
class PrecisionRules:
    """The rules of a file, in their order. history: steps that a delayed scale looks back on."""

    rules: tuple[PrecisionRule, ...] = ()
    history: int = 16
    scaling: str = "delayed"
    used: set[str] = field(default_factory=set, compare=False, repr=False)  # patterns that some module has fitted

    def choose(self, module: str, mode: str) -> ModulePrecision:
        """What becomes of the products of a module in a mode: the first rule that fits, else the mode's format, else
        bf16 for what is sensitive."""
        for rule in self.rules:
            pattern = rule.fits(module)
            if pattern is not None:
                self.used.add(pattern)
                return rule.choice
        base = "fp32" if mode == "fp32" else mode if mode in FORMATS else "bf16"
        chosen = ModulePrecision(base, self.scaling)
        if chosen.is_scaled and PrecisionRule(SENSITIVE, chosen).fits(module) is not None:
            return ModulePrecision("bf16")
        return chosen

    @property
    def unused(self) -> tuple[str, ...]:
        """Patterns that no module has fitted so far."""
        return tuple(p for rule in self.rules for p in rule.modules if p not in self.used)

    def needs(self, format: str, mode: str) -> bool:
        """Whether the mode or a rule asks for a format."""
        return mode == format or any(rule.choice.format == format for rule in self.rules)


def _around(module: str) -> tuple[str, ...]:
    """The name of a module and of those around it, each with and without what the model itself is called."""
    parts = module.split(".")
    whole = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return tuple(dict.fromkeys([*whole, *(name.partition(".")[2] or name for name in whole)]))


def read(path: Path) -> PrecisionRules:
    """The rules of a file. Raises UsageError (TRN246) for one that cannot be read or says what nobody knows."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise _wrong(
            path, f"cannot be read: {error}", "a TOML file", "check the path, and the file's syntax"
        ) from error
    return parse(content, path)


def parse(content: Mapping[str, Any], path: Path) -> PrecisionRules:
    """The rules that a TOML document says."""
    _known(path, content, {"rule", "history", "scaling"}, "the file")
    history, scaling = content.get("history", 16), content.get("scaling", "delayed")
    if not isinstance(history, int) or isinstance(history, bool) or history < 1:
        raise _wrong(path, f"has history = {history!r}", "a whole number from 1", "leave it out for 16")
    _one_of(path, "scaling", scaling, SCALINGS)
    listed = content.get("rule", [])
    if not isinstance(listed, list):
        raise _wrong(path, "has no list of rules", "[[rule]]", "write each rule under a line [[rule]]")
    return PrecisionRules(tuple(_rule(path, given, scaling) for given in listed), history, scaling)


def _rule(path: Path, given: Mapping[str, Any], scaling: str) -> PrecisionRule:
    _known(path, given, {"modules", "format", "scaling"}, "a rule")
    modules = given.get("modules")
    patterns = [modules] if isinstance(modules, str) else modules
    if not isinstance(patterns, list) or not patterns or not all(isinstance(p, str) for p in patterns):
        raise _wrong(
            path, f"has a rule with modules = {modules!r}", "a pattern or a list of them", 'write modules = "h.*.mlp"'
        )
    _one_of(path, "format", given.get("format"), FORMATS)
    _one_of(path, "scaling", given.get("scaling", scaling), SCALINGS)
    return PrecisionRule(tuple(patterns), ModulePrecision(given["format"], given.get("scaling", scaling)))


def _known(path: Path, given: Mapping[str, Any], names: set[str], what: str) -> None:
    for name in given:
        if name not in names:
            raise _wrong(path, f"has {name!r} in {what}", ", ".join(sorted(names)), "use one of these names")


def _one_of(path: Path, name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise _wrong(path, f"has a {name} of {value!r}", ", ".join(known), "choose one of these")


def _wrong(path: Path, what: str, limit: str, remedy: str) -> UsageError:
    return UsageError(f"the rule file {str(path)!r} {what}", code="TRN246", limit=limit, remedy=remedy)
