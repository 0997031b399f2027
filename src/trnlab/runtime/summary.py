# SPDX-License-Identifier: Apache-2.0
"""`summary.json`: what a run was and what it came to. The schema is documented in `docs/summary.md`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trnlab.errors import RunError
from trnlab.runtime.files import why

SCHEMA = "trnlab.summary"
VERSION = 1
FILE = "summary.json"

Summary = dict[str, Any]


def to_json(summary: Mapping[str, Any]) -> bytes:
    """As the file holds it. NaN and infinity, which JSON does not have, are written as null."""
    return (json.dumps(_finite(dict(summary)), indent=2, allow_nan=False) + "\n").encode()


def read(folder: Path) -> Summary:
    """The summary of a run's folder. Raises RunError when there is none, or it is not one."""
    path = folder / FILE
    if not folder.is_dir():
        raise RunError(f"there is no folder {str(folder)!r}", code="TRN810", remedy="name the folder of a run")
    try:
        summary = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(
            f"{str(folder)!r} holds no {FILE}", code="TRN810",
            remedy="name the folder of a run, as `trnlab run` printed it",
        ) from None  # fmt: skip
    except OSError as error:
        raise RunError(f"{str(path)!r} cannot be read: {why(error)}", code="TRN811") from error
    except ValueError as error:
        raise RunError(f"{str(path)!r} is not JSON: {error}", code="TRN812", remedy="run the script again") from error
    if not isinstance(summary, dict) or (summary.get("schema"), summary.get("version")) != (SCHEMA, VERSION):
        raise RunError(
            f"{str(path)!r} is of another kind or version", code="TRN812", limit=f"{SCHEMA} version {VERSION}",
            remedy="read it with the trnlab that wrote it, or run the script again",
        )  # fmt: skip
    return summary


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
