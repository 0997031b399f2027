# SPDX-License-Identifier: Apache-2.0
"""A pointwise function on ScalarE and the sum of each row, in one instruction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from trnlab.isa import register
from trnlab.isa.accumulators import RESULT
from trnlab.isa.base import Dataflow
from trnlab.isa.elementwise.activation import Activation


@register
class ActivationReduce(Activation):
    """dst = op(data * scale + bias), and reduce_res = the sum of each row of results.

    The same as activation with reduce_cmd = reset_reduce and a reduce_res that must be there.
    """

    name = "activation_reduce"
    opcode = 22
    dataflow = Dataflow.POINTWISE
    operands = (Activation.operands[0], replace(RESULT, optional=False), *Activation.operands[2:])
    attrs: ClassVar[Mapping[str, Any]] = {**Activation.attrs, "reduce_op": "add"}
    limits = (*Activation.limits[:-1], "reduce_op is add; reduce_cmd is reset_reduce")
    cost_kinds = ("scalar.activation_reduce",)
    source = "nki.isa.activation_reduce; trainium_inferentia2_arch.rst:421-502"
    example = """
        x, y = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.bfloat16)
        total = nl.ndarray((128, 1), nl.float32)
        # softmax: exp and its sum
        nisa.activation_reduce(dst=y, op=nl.exp, data=x, reduce_op=nl.add, reduce_res=total)
    """
