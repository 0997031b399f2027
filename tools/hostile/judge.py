# SPDX-License-Identifier: Apache-2.0
"""Many cases as one program on the simulated chip, and each result beside PyTorch's, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tools.hostile.cases import Case
from trnlab.errors import TrnlabError
from trnlab.frontends.common.engine import GraphEngine
from trnlab.frontends.torch.capture import tracing
from trnlab.frontends.torch.capture.import_fx import import_fx
from trnlab.frontends.torch.device.buffers import ChipArray, tensor_from

AGREES, REFUSED, WRONG, CRASHED = "agrees", "refused", "wrong", "crashed"
_EPS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}  # a step: sums in another order round to its other end


@dataclass(frozen=True)
class Verdict:
    """What became of a case; about: the code of a refusal, what is wrong, where it crashed."""

    label: str
    kind: str
    about: str = ""


def judge(cases: Sequence[Case], on: GraphEngine) -> list[Verdict]:
    """All as one program; where that does not come through, or one is wrong, in halves, down to single ones."""
    try:
        results = _run(cases, on)
    except Exception as error:
        if len(cases) > 1:
            return _in_halves(cases, on)
        code = getattr(error, "code", None) if isinstance(error, TrnlabError) else None
        about = f"{code}: {error}" if code else f"{type(error).__name__}: {error}"
        return [Verdict(cases[0].label, REFUSED if code else CRASHED, about[:400])]
    return [
        Verdict(c.label, WRONG if (wrong := difference(c, found)) else AGREES, wrong)
        for c, found in zip(cases, results)
    ]


def _in_halves(cases: Sequence[Case], on: GraphEngine) -> list[Verdict]:
    middle = len(cases) // 2
    return [*judge(cases[:middle], on), *judge(cases[middle:], on)]


def _run(cases: Sequence[Case], on: GraphEngine) -> list[Tensor]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    inputs = [x for c in cases for x in c.inputs]
    fakes = [tracing.fake_like(mode, x, "neuron") for x in inputs]

    def traced(lines: Any, *given: Tensor) -> list[Tensor]:
        left = iter(given)
        return [c.whole([next(left) for _ in c.inputs]) for c in cases]

    module = tracing.trace(traced, fakes, mode)
    imported = import_fx(module, "hostile")
    names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
    program = on.compile(imported.graph)
    found = dict(
        zip(imported.outputs, program([ChipArray(inputs[names.index(n or "")]).array() for n in imported.inputs]))
    )
    returned = next(n for n in module.graph.nodes if n.op == "output").args[0]
    return [
        tensor_from(found[i], n.meta["val"].dtype, "cpu") if i in found else inputs[names.index(n.name)]
        for i, n in enumerate(returned)
    ]


def difference(case: Case, got: Tensor) -> str:
    """What is wrong, in words; nothing where the result agrees."""
    wanted = case.whole(case.inputs)
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype}{list(got.shape)} for {wanted.dtype}{list(wanted.shape)}"
    if not wanted.dtype.is_floating_point:
        bad = _unsure(case, wanted) & (got != wanted)
    else:
        bad = ~_agrees(case, got, wanted)
    if not bad.any():
        return ""
    at = bad.nonzero()[0].tolist()
    return f"{int(bad.sum())} of {got.numel()}, at {at}: {got[tuple(at)].item()!r} for {wanted[tuple(at)].item()!r}"


def _unsure(case: Case, wanted: Tensor) -> Tensor:
    """Where a truth does not hang on the last digit of what is compared."""
    if case.behind != "greater" or case.bias is None:
        return torch.ones(wanted.shape, dtype=torch.bool)
    raw = case.raw(case.inputs).double()
    return ~((raw - case.bias.double()).abs() <= _allowed(case, raw.to(case.bias.dtype)))


def _allowed(case: Case, raw: Tensor) -> Tensor:
    """How far the operator's result may be off."""
    operator, scale = case.operator, raw.double().abs()
    if operator.scale is not None:
        scale = operator.scale(*(x.double() for x in case.views(case.inputs)), *case.along)
    info = torch.finfo(raw.dtype) if operator.rtol and raw.dtype in _EPS else None  # the last step, and the least
    rtol, least = (operator.rtol + info.eps, info.tiny * info.eps) if info is not None else (operator.rtol, 0.0)
    return (operator.tiny + least + rtol * scale).nan_to_num(0.0, 0.0).broadcast_to(raw.shape)


def _agrees(case: Case, got: Tensor, wanted: Tensor) -> Tensor:
    raw, ours, theirs = case.raw(case.inputs), got.double(), wanted.double()
    allowed = _allowed(case, raw)
    if case.behind == "times" and case.bias is not None:
        allowed = allowed * case.bias.double().abs().nan_to_num(0, 0, 0)
    if case.operator.rtol and case.behind in ("plus", "times"):
        allowed = allowed + _EPS.get(got.dtype, 2.0**-22) * theirs.abs().nan_to_num(0.0, 0.0)
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if case.operator.signed:
        same &= (theirs != 0) | (got.signbit() == wanted.signbit())
    edge = 0.99999 * torch.finfo(wanted.dtype).max
    beyond = (ours.abs() >= edge) & (theirs.abs() >= edge) & (ours.sign() == theirs.sign())
    near = (ours - theirs).abs() <= allowed
    return same | ((near | beyond) & bool(case.operator.rtol) & ~((theirs == 0) & (ours == 0)))
