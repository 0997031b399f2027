# SPDX-License-Identifier: Apache-2.0
"""What a file of a run must hold: checked once when it is read, so that whoever uses it need not.

A check takes a value and where it stands, and raises ValueError when the value is of another kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], None]
LARGEST = 2**62  # of a whole number: sums of a few still fit in 64 bits
MOST_TIMES = 100_000  # an executable runs in a step


def _expect(condition: bool, where: str, what: str, value: Any) -> None:
    if not condition:
        raise ValueError(f"{where} must be {what}, not {str(value)[:40]!r}")


def text(value: Any, where: str) -> None:
    """A string."""
    _expect(isinstance(value, str), where, "text", value)


def name(value: Any, where: str) -> None:
    """A string that is not blank."""
    _expect(isinstance(value, str) and bool(value.strip()), where, "a name", value)


def flag(value: Any, where: str) -> None:
    """True or False."""
    _expect(isinstance(value, bool), where, "true or false", value)


def whole(low: int = -LARGEST, high: int = LARGEST) -> Check:
    """An integer from `low` to `high`."""

    def check(value: Any, where: str) -> None:
        right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        _expect(right, where, f"a whole number from {low} to {high}", value)

    return check


def number(low: float = -1e300, *, above: bool = False) -> Check:
    """A finite number from `low`, or above it."""

    def check(value: Any, where: str) -> None:
        right = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300
        right = right and math.isfinite(value) and (value > low if above else value >= low)
        _expect(right, where, f"a number {'above' if above else 'from'} {low:g}", value)

    return check


def one_of(*values: Any) -> Check:
    """One of these."""
    return lambda value, where: _expect(value in values, where, " or ".join(map(repr, values)), value)


def maybe(check: Check) -> Check:
    """What `check` accepts, or nothing."""
    return lambda value, where: None if value is None else check(value, where)


def each(check: Check, *, least: int = 0, most: int = LARGEST) -> Check:
    """A list of what `check` accepts."""

    def checked(value: Any, where: str) -> None:
        _expect(isinstance(value, list) and least <= len(value) <= most, where, "a list of the right length", value)
        for i, item in enumerate(value):
            check(item, f"{where}[{i}]")

    return checked


def table(check: Check) -> Check:
    """Names, each with what `check` accepts."""

    def checked(value: Any, where: str) -> None:
        _expect(isinstance(value, dict), where, "an object", value)
        for name, item in value.items():
            check(item, f"{where}.{name}")

    return checked


def record(fields: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """All of `fields`, and those of `optional` that are there; others are let be, they may be of a later version."""

    def checked(value: Any, where: str) -> None:
        _expect(isinstance(value, dict), where, "an object", value)
        for name, check in fields.items():
            _expect(name in value, f"{where}.{name}".lstrip("."), "there", None)
            check(value[name], f"{where}.{name}".lstrip("."))
        for name, check in (optional or {}).items():
            if name in value:
                check(value[name], f"{where}.{name}".lstrip("."))

    return checked


COUNT, SIZE, SHARE, SECONDS = whole(0), number(0), number(0), number(0)
_TIMES = each(record({"executable": text, "times": whole(1, MOST_TIMES)}), most=MOST_TIMES)
_USE = table(record({"active": SHARE, "busy": SHARE}))
_PAIR = each(COUNT, least=2, most=2)
_WAITING = {"waiting_for": name, "cause": text, "buffer": text, "ps": COUNT}

ALWAYS: dict[str, Check] = {
    "trnlab": text,
    "name": text,
    "status": one_of("running", "complete", "interrupted", "failed"),
    "complete": flag,
    "script": text,
    "arguments": each(text),
    "started": text,
    "wall_s": SECONDS,
    "step_wall_s": each(SECONDS),
    "target": text,
    "chip": text,
    "precision": text,
    "stochastic_rounding": flag,
    "seed": whole(),
    "steps": COUNT,
    "steps_found_by": maybe(one_of("report", "optimizer", "repetition")),
    "loss": each(maybe(number())),
    "reference_loss": each(maybe(number())),
    "reference_loss_gap": maybe(number()),
    "instructions": COUNT,
    "host_fallback_ops": record({"setup": COUNT, "training": COUNT}),
    "host_fallbacks": record({"setup": table(COUNT), "training": table(COUNT)}),
    "compile": record({"seconds": SECONDS, "cache": maybe(one_of("hit", "miss", "off")), "executables": COUNT}),
}

TIMED: dict[str, Check] = {
    "step": _TIMES,
    "step_time_s": number(0, above=True),
    "tokens_per_step": COUNT,
    "tokens_per_s": number(0),
    "mfu": SHARE,
    "hfu": SHARE,
    "model_flops_per_step": SIZE,
    "peak_flops": number(0, above=True),
    "instructions_per_step": COUNT,
    "engines": _USE,
    "critical_path": table(number()),
    "bound_by": text,
    "hbm": record({"read_bytes": SIZE, "write_bytes": SIZE, "bandwidth_used": SHARE}),
    "memory": record(
        {
            "peak_bytes": SIZE,
            "capacity_bytes": number(0, above=True),
            "parts": table(number()),
            "largest": each(record({"name": text, "shape": each(COUNT), "dtype": text, "bytes": SIZE})),
        }
    ),
    "cost": record(
        {
            "usd_per_million_tokens": maybe(SIZE),
            "usd_per_hour": maybe(SIZE),
            "price_kind": maybe(text),
            "price_date": maybe(text),
            "price_source": maybe(text),
            "cores": whole(1),
            "cores_used": whole(1),
        }
    ),
    "assumptions": each(
        record(
            {
                "figure": text,
                "value": number(),
                "unit": text,
                "reason": text,
                "halved": number(),
                "doubled": number(),
            }
        )
    ),
}

LISTS: dict[str, Check] = {
    "step_kinds": each(
        record(
            {
                "executables": _TIMES,
                "step_time_s": SECONDS,
                "steps": each(each(whole(1), least=2, most=2), least=1),
            }
        )
    ),
    "choices": each(record({"option": text, "value": text, "change": number()})),
    "limit": record({"seconds": SECONDS, "by": text}),
    "kernels": each(
        record(
            {
                "name": text,
                "executable": text,
                "chip": text,
                "calls": COUNT,
                "instructions": COUNT,
                "time_s": SECONDS,
                "engines": _USE,
                "bound_by": text,
            },
            {
                "policy": text,
                "passes": each(
                    record(
                        {
                            "option": text,
                            "instructions": _PAIR,
                            "tiles": _PAIR,
                            "moved_bytes": _PAIR,
                        }
                    )
                ),
            },
        )
    ),
}

EXPLAINED: dict[str, Check] = {
    "step_ps": whole(1),
    "dma": record({"bytes": SIZE, "efficiency": SHARE, "engine_bytes_per_s": SIZE}),
    "spill": record(
        {"save_bytes": SIZE, "reload_bytes": SIZE},
        {
            "psum_bytes": SIZE,
            "cost_ps": whole(),
            "tiles": each(
                record(
                    {
                        "kernel": text,
                        "tile": text,
                        "line": text,
                        "from": text,
                        "to": text,
                        "times": COUNT,
                        "save_bytes": COUNT,
                        "reload_bytes": COUNT,
                    }
                )
            ),
        },
    ),
    "lost": each(record({**_WAITING, "part": text})),
    "engine_time": table(record({"busy_ps": COUNT, "waiting": each(record(_WAITING)), "ends_ps": COUNT})),
    "costliest_lines": each(
        record(
            {
                "line": text,
                "text": text,
                "instructions": COUNT,
                "critical_ps": COUNT,
                "busy_ps": COUNT,
            }
        )
    ),
    "roofline": record(
        {
            "peak_flops": table(number(0, above=True)),
            "hbm_bytes_per_s": number(0, above=True),
            "routines": each(record({"label": text, "calls": COUNT, "ps": COUNT, "flops": SIZE, "hbm_bytes": SIZE})),
        }
    ),
    "advice": each(
        record(
            {
                "cost": text,
                "line": text,
                "what": text,
                "way": text,
                "gain_ps": whole(),
                "gain": number(),
            }
        )
    ),
}


_SUMS = table(record({"calls": COUNT, "bytes": COUNT, "seconds": SECONDS}))
_NETWORK = record(
    {
        "rank": COUNT,
        "ranks": whole(1),
        "instances": whole(1),
        "place": table(COUNT),
        "seconds": SECONDS,
        "by_purpose": _SUMS,
        "by_operation": _SUMS,
        "busiest": maybe(record({"link": text, "seconds": SECONDS})),
    }
)
_USES = table(
    record(
        {
            "count": COUNT,
            "bytes": COUNT,
            "time_s": SECONDS,
            "exposed_s": number(),
            "hidden_s": number(),
        }
    )
)
_LINK = {"link": text, "bytes": SIZE, "busy_s": SECONDS, "share": SHARE, "class_bytes": SIZE}
_COMMUNICATION = record(
    {
        "time_s": SECONDS,
        "exposed_s": number(),
        "hidden_s": number(),
        "share": number(),
        "ratio": maybe(SHARE),
        "purposes": _USES,
        "kinds": _USES,
        "links": table(record(_LINK)),
        "busiest_link": maybe(record(_LINK)),
        "gradient_share": SHARE,
        "threshold": SHARE,
        "flagged": flag,
    },
    {
        "remedies": each(
            record(
                {
                    "what": text,
                    "costs": text,
                    "step_s": maybe(SECONDS),
                    "gain": maybe(number()),
                    "why": text,
                }
            )
        ),
    },
)
_DATA = record(
    {
        "place": text,
        "data_bytes": COUNT,
        "shards": COUNT,
        "ranks": whole(1),
        "batch": whole(1),
        "epoch_batches": COUNT,
        "unused": COUNT,
        "prefetch": COUNT,
        "together": whole(1),
        "retries": COUNT,
        "batches": COUNT,
        "samples": COUNT,
        "requests": COUNT,
        "read_bytes": COUNT,
        "waited_s": SECONDS,
        "first_s": SECONDS,
    },
    {
        "simulated": record(
            {
                "store": text,
                "bytes_per_s": number(0, above=True),
                "bound_by": text,
                "step_wait_s": SECONDS,
                "first_s": SECONDS,
                "epoch_requests": SIZE,
                "prefetch_enough": maybe(COUNT),
                "epoch_requests_usd": SIZE,
                "month_usd": SIZE,
                "epoch_waits_usd": maybe(SIZE),
            }
        ),
    },
)
SOMETIMES: dict[str, Check] = {
    "policy": record({"name": text, "options": table(text)}),
    "network": _NETWORK,
    "failure": text,
    "input_s": SECONDS,
    "data": each(_DATA),
    "resumed": COUNT,
    "communication": _COMMUNICATION,
    "together": record(
        {
            "step_s": SECONDS,
            "unmatched": COUNT,
            "lanes": each(record({"ranks": each(COUNT, least=1), "waits_s": SECONDS})),
        }
    ),
    "ranks": each(record({"rank": COUNT, "status": text}, {"failure": text, "network": _NETWORK})),
}


_SPAN = each(COUNT, least=2, most=2)
_TOGETHER = record(
    {
        "total_ps": COUNT,
        "unmatched": COUNT,
        "links": each(lambda value, where: None),
        "lanes": each(
            record(
                {
                    "ranks": each(COUNT, least=1),
                    "busy": each(_SPAN),
                    "waits": each(_SPAN),
                    "waits_ps": COUNT,
                    "end_ps": COUNT,
                    "sent": each(lambda value, where: None),
                }
            )
        ),
    }
)


def check_together(found: Any) -> None:
    """Raise ValueError for a step of all ranks that is not as `runtime.lanes` writes it."""
    _TOGETHER(found, "")


def check_summary(summary: dict[str, Any]) -> None:
    """Raise ValueError for a summary of this version that is not as `docs/summary.md` says."""
    record(ALWAYS, SOMETIMES)(summary, "")
    if any(name in summary for name in (*TIMED, *LISTS, *EXPLAINED)):
        record(TIMED, LISTS)(summary, "")
    if any(name in summary for name in EXPLAINED):
        record(EXPLAINED)(summary, "")


def places(value: Any, where: str) -> None:
    """A list of whole numbers, as long as a program."""
    _expect(isinstance(value, list) and set(map(type, value)) <= {int}, where, "a list of whole numbers", value)
    _expect(not value or (min(value) >= -1 and max(value) < LARGEST), where, "a list of places", value)


_NAMED_BYTES = record({"capacity": whole(1), "time": text, "bytes": text})
_DETAILS = record(
    {
        "texts": each(text),
        "sources": each(each(text, least=2, most=2)),
        "routines": each(record({"text": places, "source": places})),
        "calls": each(each(whole(-1), least=2, most=2)),
        "critical_path": places,
        "buffers": each(text),
        "buffer": text,
        "occupancy": table(_NAMED_BYTES),
        "spilled": record({"save_bytes": COUNT, "reload_bytes": COUNT}),
    }
)


def check_details(about: dict[str, Any]) -> None:
    """Raise ValueError for details that are not as `docs/summary.md` says; places in tables are checked when used."""
    _DETAILS(about, "")
