# SPDX-License-Identifier: Apache-2.0
"""`summary.json`: what a run was and what it came to. The schema is documented in `docs/summary.md`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trnlab.errors import RunError
from trnlab.runtime.files import why
from trnlab.units import PS_PER_S, format_bytes, format_count, format_time

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


def text(summary: Mapping[str, Any]) -> str:
    """The answers of a summary for a terminal."""
    rows = [_header(summary), *_learning(summary), *_timing(summary), *_making(summary)]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {value}".rstrip() for label, value in rows)


def _header(s: Mapping[str, Any]) -> tuple[str, str]:
    state = "" if s["complete"] else f", {s['status']}: what follows is partial"
    return "run", f"{s['name']} on {s['target']} ({s['chip']}, {s['precision']}){state}"


def _learning(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    loss, gap = s["loss"], s["reference_loss_gap"]
    rows = [("steps", f"{s['steps']} in {s['wall_s']:.1f} s here")]
    if loss:
        rows.append(("loss", " -> ".join("NaN" if x is None else f"{x:.4f}" for x in (loss[0], loss[-1]))))
    if gap is not None:
        rows.append(("  against CPU fp32", f"at most {gap:.4f} apart"))
    return rows


def _timing(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "step_time_s" not in s:
        return []
    hbm, memory, cost = s["hbm"], s["memory"], s["cost"]
    active = sorted(((e["active"], name) for name, e in s["engines"].items()), reverse=True)
    usd = cost["usd_per_million_tokens"]
    return [
        ("step on the chip", f"{format_time(s['step_time_s'] * PS_PER_S)}, bound by {s['bound_by']}"),
        ("tokens per second", format_count(s["tokens_per_s"])),
        ("MFU", f"{s['mfu']:.1%}"),
        ("engines active", ", ".join(f"{name} {share:.0%}" for share, name in active)),
        ("HBM per step", f"{format_bytes(hbm['read_bytes'])} read, {format_bytes(hbm['write_bytes'])} written"),
        ("peak memory", f"{format_bytes(memory['peak_bytes'])} of {format_bytes(memory['capacity_bytes'])}"),
        ("a million tokens", "no price known" if usd is None else f"${usd:.4g} ({cost['price_kind']})"),
        ("assumed figures", f"{len(s['assumptions'])} (`trnlab chips {s['chip']} --assumed`)"),
    ]


def _making(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    made = s["compile"]
    cache = {"hit": "from the cache", "miss": "not in the cache", "off": "no cache"}.get(made["cache"], "nothing")
    return [
        ("compiling", f"{made['seconds']:.2f} s, {cache}"),
        (
            "instructions",
            f"{format_count(s['instructions'])} executed, {s['host_fallback_ops']} operators on the host",
        ),
    ]
