# SPDX-License-Identifier: Apache-2.0
"""What is suspicious about an estimate, by what owes nothing to the compiler that made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.sweep.script import TrainingScript

FLOPS_OFF = 0.02  # of PyTorch's count
LEAST_SHARE = 0.15  # of the limit that the report itself gives
BACKWARD = (0.6, 4.0)  # times the forward pass, which may hold the loss whole; thrice where it is computed again


def verdict(
    report: dict[str, Any], reference: dict[str, Any], script: TrainingScript, peak: float
) -> tuple[str, list[str]]:
    """ "done", "refused" or "suspicious", and why.

    report: the JSON of `trnlab estimate`. reference: of `tools.sweep.reference`, empty where it failed. peak: FLOP/s
    that the report's MFU is a part of.
    """
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    target = report["targets"][0] if report["targets"] else None
    if target is None or target["step_s"] is None:
        return "refused", [_told(f) for f in errors] or [target["why"] if target else "no step"]
    why = [*map(_told, errors), *judged(report, target, reference, script, peak)]
    return ("suspicious" if why else "done"), why


def judged(
    report: dict[str, Any], target: dict[str, Any], reference: dict[str, Any], script: TrainingScript, peak: float
) -> Iterator[str]:
    """Everything that is not as it should be."""
    yield from _of_counts(report, target, reference, peak)
    samples = script.batch_size * script.accumulate
    wanted = samples * script.length if report["counted"] == "tokens" else samples
    if report["per_step"] != wanted:
        yield f"{report['per_step']} {report['counted']} a step, not {wanted}"
    yield from _of_phases(target)
    share = target["limit"]["seconds"] / target["step_s"] if target["limit"] else 0.0
    if not LEAST_SHARE <= share <= 1:
        yield f"{100 * share:.1f} % of its limit"


def _of_counts(
    report: dict[str, Any], target: dict[str, Any], reference: dict[str, Any], peak: float
) -> Iterator[str]:
    if not reference:
        return
    flops = (target["mfu"] or 0.0) * target["step_s"] * peak
    if abs(flops / reference["flops"] - 1) > FLOPS_OFF:
        yield f"{flops:.4g} FLOPs, not {reference['flops']:.4g} ({flops / reference['flops']:.3f} of it)"
    if not reference.get("trained", reference["parameters"]) <= report["parameters"] <= reference["parameters"]:
        yield f"{report['parameters']:,} parameters, not {reference['parameters']:,}"
    memory = target["memory"]
    for name, least in (("parameters", reference["parameter_bytes"]), ("state", reference["state_bytes"])):
        if memory[name] < 0.99 * least:
            yield f"{memory[name]:,} bytes of {name}, not {least:,}"


def _of_phases(target: dict[str, Any]) -> Iterator[str]:
    parts = target["parts"]
    missing = [name for name in ("forward", "backward", "update") if not parts.get(name)]
    if missing:
        yield f"no {', no '.join(missing)}"
    elif not BACKWARD[0] <= parts["backward"] / parts["forward"] <= BACKWARD[1]:
        yield f"backward {parts['backward'] / parts['forward']:.2f} times forward"
    if abs(sum(parts.values()) / target["step_s"] - 1) > 0.01:
        yield f"phases are {sum(parts.values()) / target['step_s']:.3f} of the step"


def _told(finding: dict[str, Any]) -> str:
    return f"{finding['code']} {finding['what']}"[:300]
