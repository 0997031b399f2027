# SPDX-License-Identifier: Apache-2.0
"""Instructions of nki.isa that ScalarE executes."""

from __future__ import annotations

from typing import Any

from trnlab.isa.base import Engine
from trnlab.lang import compose
from trnlab.lang import instructions as ins
from trnlab.lang.recorder import current
from trnlab.lang.tensor import Tensor
from trnlab.nki.enums import reduce_cmd
from trnlab.nki.handles import NkiInstruction, issue, number
from trnlab.nki.operators import alu_name, function_name, stage_name


def activation(
    dst: Tensor,
    op: Any,
    data: Tensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Tensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op(data * scale + bias), optionally with the sum of each row."""
    options = _reducing("activation", Engine.SCALAR, dst, reduce_cmd, reduce_res)
    return _activation(dst, op, data, bias, scale, reduce_op, reduce_res, name, options)


def _activation(
    dst: Tensor,
    op: Any,
    data: Tensor,
    bias: Any,
    scale: Any,
    reduce_op: Any,
    reduce_res: Tensor | None,
    name: str | None,
    options: dict[str, Any],
) -> NkiInstruction:
    function = function_name(op)
    # There is no parameter here: a slope of 0, as in activate2.
    function = "relu" if function == "prelu" else function
    return issue(
        "activation",
        name,
        dst=dst,
        op=function,
        data=data,
        bias=_bias(bias),
        scale=number(scale),
        reduce_op="add" if reduce_op is None else alu_name(reduce_op),
        reduce_res=reduce_res,
        **options,
    )


def _reducing(
    instruction: str, on: Engine, dst: Tensor, command: reduce_cmd, result: Tensor | None, initial: Any = None
) -> dict[str, Any]:
    """How an instruction uses its engine's accumulators: nothing to say where it neither keeps nor shows a sum."""
    if command is _IDLE and result is None:
        return {}
    options: dict[str, Any] = {"reduce_cmd": command.name, "accumulators": ins.accumulators(on, dst.shape[0])}
    if command is _LOAD:
        options["reduce_init"] = number(0.0 if initial is None else initial)
    return options if ins.accepts(instruction, "reduce_cmd") else {}


_IDLE, _LOAD, _RESET_REDUCE = reduce_cmd.idle, reduce_cmd.load_reduce, reduce_cmd.reset_reduce


def _bias(bias: Any) -> Any:
    """A number as bias is a tile on chips whose ScalarE takes none."""
    if bias is None or isinstance(bias, Tensor) or not bias:
        return bias if isinstance(bias, Tensor) else None
    if current().chip.has("scalar_bias_immediate"):
        return float(bias)
    return current().once(("bias", float(bias)), lambda: compose.filled((128, 1), float(bias), "float32"))


def activation_reduce(
    dst: Tensor,
    op: Any,
    data: Tensor,
    reduce_op: Any,
    reduce_res: Tensor,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """An activation that also sums each row; without reduce_res the sums stay in ScalarE's accumulators."""
    options = _reducing("activation", Engine.SCALAR, dst, _RESET_REDUCE, reduce_res)
    return _activation(dst, op, data, bias, scale, reduce_op, reduce_res, name, options)


def activate2(
    dst: Tensor,
    op: Any,
    data: Tensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: Tensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """op((data op0 imm0) op1 imm1), optionally reduced."""
    return issue(
        "activate2",
        name,
        dst=dst,
        op=function_name(op),
        data=data,
        imm0=imm0,
        imm1=imm1,
        op0=stage_name(op0),
        op1=stage_name(op1),
        relu_param=relu_param,
        reverse0=reverse0,
        reverse1=reverse1,
        reduce_op="add" if reduce_op is None else alu_name(reduce_op),
        reduce_res=reduce_res,
        **_reducing("activate2", Engine.SCALAR, dst, reduce_cmd, reduce_res),
    )
