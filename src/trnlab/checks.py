# SPDX-License-Identifier: Apache-2.0
"""What is checked about a program beyond single instructions, by name, and how severe each is: error, warn or off.

    with checks(race="warn", uninitialised_read="off"): ...
    TRNLAB_CHECKS=race=warn,uninitialised-read=off python script.py
    trnlab run --check race=warn script.py

The innermost `checks` block decides, then what `configure` was given, then the environment, then the default.
`docs/checks.md` has a section for each name.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from trnlab.errors import TrnlabError, UsageError

VARIABLE = "TRNLAB_CHECKS"
LEVELS = ("error", "warn", "off")

CHECKS: Mapping[str, str] = {  # name -> level where nobody says otherwise
    "uninitialised-read": "error",
    "unwritten-output": "warn",
    "overlap": "error",
    "accumulation": "error",
    "race": "error",
    "lint": "warn",
}

_configured: dict[str, str] = {}
_told: dict[Any, Any] = {}  # what has been warned of: Python's filters say whether once is enough, as for any warning
_scoped: ContextVar[Mapping[str, str] | None] = ContextVar("trnlab_checks", default=None)


class CheckWarning(UserWarning):
    """A finding of a check that is turned down to a warning; its text is that of the error."""


def level(name: str) -> str:
    """How severe a check is here and now: "error", "warn" or "off"."""
    scoped = _scoped.get() or {}
    if name in scoped:
        return scoped[name]
    return _configured.get(name) or parse(os.environ.get(VARIABLE, "")).get(name) or CHECKS[name]


@contextmanager
def checks(**levels: str) -> Iterator[None]:
    """Within the block these checks have these levels. Raises UsageError for a name or level that is none."""
    chosen = {name.replace("_", "-"): value for name, value in levels.items()}
    _known(chosen)
    token = _scoped.set({**(_scoped.get() or {}), **chosen})
    try:
        yield
    finally:
        _scoped.reset(token)


def configure(levels: Mapping[str, str]) -> None:
    """Levels for the rest of the process, as the command line sets them."""
    _known(levels)
    _configured.update(levels)


def configured() -> dict[str, str]:
    """What `configure` was told."""
    return dict(_configured)


def parse(text: str) -> dict[str, str]:
    """Levels from `name=level,name=level`. Raises UsageError for what is not that."""
    pairs = [part.strip() for part in text.split(",") if part.strip()]
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise UsageError(
                f"{pair!r} does not set a check",
                code="TRN127",
                limit="NAME=LEVEL",
                got=pair,
                remedy="write for example race=warn",
            )
        found[name.strip().replace("_", "-")] = value.strip()
    _known(found)
    return found


def report(name: str, error: TrnlabError, harmless: bool = False) -> None:
    """Raise the finding of a check, warn of it at its line, or do nothing, as the check's level says.

    harmless: the results do not depend on it, so that it is a warning at most.
    """
    severity = level(name)
    if severity == "off":
        return
    if severity == "error" and not harmless:
        raise error
    file, line = (error.where.file, error.where.line) if error.where else ("<kernel>", 1)
    warnings.warn_explicit(str(error), CheckWarning, file, line, registry=_told)


def _known(levels: Mapping[str, str]) -> None:
    for name, value in levels.items():
        if name not in CHECKS:
            raise UsageError(
                f"no check is called {name!r}",
                code="TRN127",
                limit=", ".join(CHECKS),
                got=name,
                remedy="use one of these names",
            )
        if value not in LEVELS:
            raise UsageError(
                f"a check has no level {value!r}",
                code="TRN127",
                limit=", ".join(LEVELS),
                got=value,
                remedy=f"write for example {name}=warn",
            )
