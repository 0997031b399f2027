# SPDX-License-Identifier: Apache-2.0
"""A verdict for the terminal: the first divergence in its surroundings, the losses, and one line that says it all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trnlab.verify.result import DIFFERS, OpResult, Verdict, worst_by_kind

_WIDE = 52


def text(verdict: Verdict) -> str:
    """The whole report."""
    parts = [_head(verdict)]
    if verdict.first is not None:
        parts += ["\n".join(_first(verdict.first)), "\n".join(_around(verdict))]
    parts += ["\n".join(_losses(verdict)), "\n".join(_counts(verdict)), conclusion(verdict)]
    return "\n\n".join(part for part in parts if part)


def conclusion(verdict: Verdict) -> str:
    """The last line."""
    steps = f"{verdict.steps} step{'s' * (verdict.steps != 1)}"
    if verdict.clean:
        return f"no difference beyond rounding in {steps}"
    first = verdict.first
    if first is None:
        return (
            f"the loss of step {verdict.curves.outside()} lies outside of what rounding gives, and no op is to blame"
        )
    gradient = " (gradient)" if first.gradient else ""
    return f"first divergence: {first.op}{gradient} at {short(first)}, {first.condition}"


def short(result: OpResult) -> str:
    """File and line, the file without its folders."""
    return f"{Path(result.place.file).name}:{result.place.line}" if result.place.file else "an unknown line"


def named(result: OpResult) -> str:
    """The op, and whether it is of the backward pass."""
    return f"{result.op}{', gradient' if result.gradient else ''}"


def _head(verdict: Verdict) -> str:
    if verdict.against:
        return f"{verdict.script} against {verdict.against}, both on the host, {verdict.steps} steps"
    return (
        f"{verdict.script} on {verdict.target}, {verdict.precision} matrix products, against PyTorch on the host "
        f"({verdict.reference}), {verdict.steps} steps"
    )


def _first(r: OpResult) -> Iterator[str]:
    where = r.place
    yield f"first divergence  {named(r)}, step {r.step}"
    yield f"  layer   {where.layer or 'outside of a module'}"
    yield f"  at      {where}" + (f" in {where.function}" if where.function else "")
    if where.text:
        yield f"          {where.text}"
    if r.other is not None:
        yield f"  against {r.other}"
        yield f"          {r.other.text}"
    at = f", element {list(r.index)}" if r.index else ""
    yield f"  result  {r.format}{list(r.shape)}{at}"
    yield f"  {'chip' if r.other is None else 'this':<7} {r.chip:.9g}"
    allowed = f"  (+- {r.bound:.2g} allowed)" if r.bound else ""
    yield f"  {'host' if r.other is None else 'other':<7} {r.reference:.9g}{allowed}"
    if r.wrong:
        yield f"  wrong   {r.wrong:,} of {_size(r):,} elements"
    yield f"  because {r.condition}" + (f": {r.why}" if r.why else "")
    if r.remedy:
        yield f"  do      {r.remedy}"


def _size(r: OpResult) -> int:
    size = 1
    for n in r.shape:
        size *= n
    return size


def _around(verdict: Verdict) -> Iterator[str]:
    rows = verdict.neighbours()
    if not rows:
        return
    yield f"in graph order     {'error / bound':>14}"
    for r in rows:
        arrow = "->" if r is verdict.first else "  "
        mark = "differs" if r.status == DIFFERS else ""
        layer = f"{r.place.layer}  " if r.place.layer else ""
        yield f"{arrow} {named(r)[:_WIDE]:<{_WIDE}} {r.ratio:>9.3g}  {layer}{short(r)}  {mark}".rstrip()


def _losses(verdict: Verdict) -> Iterator[str]:
    curves = verdict.curves
    if not curves.reference:
        return
    outside = curves.outside()
    other = "other" if verdict.against else "host"
    yield f"loss    {'this' if verdict.against else 'chip':<12} {other:<12} rounding alone gives"
    for step, (chip, host, (low, high)) in enumerate(zip(curves.chip, curves.reference, curves.band()), 1):
        mark = "  outside" if outside is not None and step >= outside and not low <= chip <= high else ""
        yield f"{step:>4}    {chip:<12.7g} {host:<12.7g} {low:.7g} to {high:.7g}{mark}"


def _counts(verdict: Verdict) -> Iterator[str]:
    worst = {k: r for k, r in worst_by_kind(verdict).items() if r}
    nearest = max(worst.items(), key=lambda item: item[1], default=None)
    close = f"; the largest error is {nearest[1]:.2f} of its bound ({nearest[0]})" if nearest else ""
    what = f"{verdict.compared:,} results of ops, {verdict.elements:,} elements"
    yield f"compared {what}, in {verdict.seconds:.0f} s{close}"
    if verdict.skipped:
        ops = sorted({r.op for r in verdict.skipped})
        yield f"not compared: {len(verdict.skipped)} results of {', '.join(ops[:5])}{' ...' if len(ops) > 5 else ''}"
    if not verdict.against:
        same = "bit for bit those of" if verdict.same_program else "NOT all the same as those of"
        yield f"the outputs of the program that shows its intermediate results are {same} the program that you run"
    yield from verdict.notes
    more = len(verdict.differing) - 1
    if more > 0:
        yield f"{more} more result{'s' * (more != 1)} after the first differ{'s' * (more == 1)}; --json has them all"
