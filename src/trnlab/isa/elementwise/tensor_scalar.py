# SPDX-License-Identifier: Apache-2.0
"""One or two operators between a tile and one value per partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.alu import AluOp, alu_op, with_scalar
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work
from trnlab.isa.opcheck import check_alu, check_bits

RSQRT, ON_SCALAR = 1, 2  # of `Work.m`
# What an activation computes before its function. The sides of an operator do not matter, since both commute.
_SCALE_AND_SHIFT = (["multiply", "add"], ["multiply"], ["add"])


@register
class TensorScalar(Instruction):
    """dst = (data op0 operand0) op1 operand1; the second operator may be left out.

    Each operand is a number or one value per partition. reverse0 swaps the sides of op0 (operand0 op0 data), reverse1
    those of op1. The intermediate result stays in float32. A unary operator takes None as its operand.
    """

    name = "tensor_scalar"
    opcode = 7
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
    engine_features: ClassVar[Mapping[Engine, str]] = {Engine.SCALAR: "scalar_tensor_scalar"}
    operands = (
        OperandSpec("dst", "dst"),
        OperandSpec("data", "src"),
        OperandSpec("operand0", "src", optional=True, immediate=True, shape=("P", "1")),
        OperandSpec("operand1", "src", optional=True, immediate=True, shape=("P", "1")),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "op0": "multiply",
        "reverse0": False,
        "operand1": None,
        "op1": None,
        "reverse1": False,
        "operand0": None,
    }
    indirect = ("dst", "data")
    limits = (
        "op0 and op1 are names of isa.alu that exist on the engine, both arithmetic or both bitvec",
        "operand tiles are float32 for arithmetic; for bitvec operators all operands are integers of one format",
        "on scalar: multiply, add, or multiply then add, not reversed; any arithmetic on chips with scalar_alu",
        "on gpsimd: rsqrt, alone or with add or multiply",
    )
    source = "nki.isa.tensor_scalar; nki.api.shared.rst (operators); trainium2_arch.rst:222-239 (fast modes)"
    example = """
        x, mean = nl.ones((128, 512), nl.float32), nl.ones((128, 1), nl.float32)
        y = nl.ndarray((128, 512), nl.float32)
        # (x - mean) / 2
        nisa.tensor_scalar(dst=y, data=x, op0=nl.subtract, operand0=mean, op1=nl.multiply, operand1=0.5)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Operators, operands and engine go together."""
        used = [check_alu(self, attrs["op0"], engine, chip)]
        if attrs["op1"] is not None:
            used.append(check_alu(self, attrs["op1"], engine, chip))
        elif "operand1" in ops or attrs["operand1"] is not None:
            self._refuse_attr("operand1 without op1", "both or neither", "operand1", chip)
        for i, op in enumerate(used):
            self._check_operand(f"operand{i}", op, ops, attrs, chip)
        if len({op.bitvec for op in used}) > 1:
            self._refuse_attr(
                "operators on bits and arithmetic cannot mix",
                "both bitvec or both arithmetic",
                " then ".join(op.name for op in used),
                chip,
            )
        if used[0].bitvec:
            check_bits(self, ops, ("dst", "data", "operand0", "operand1"), chip)
        if engine is not Engine.VECTOR:
            self._check_combination([op.name for op in used], attrs, engine, chip)

    def _check_operand(
        self, name: str, op: AluOp, ops: Mapping[str, Operand], attrs: Mapping[str, Any], chip: Chip
    ) -> None:
        value = attrs.get(name)
        if name not in ops and value is None and not op.unary:
            self.refuse(
                f"operand {name!r} is missing",
                limit="an access pattern or a number",
                got=None,
                chip=chip,
                remedy=f"pass {name}=",
                code="TRN402",
            )
        if name in ops and not op.bitvec and ops[name].dtype.name != "float32":
            self.refuse(
                f"operand {name!r} has a format it cannot have",
                limit="float32",
                got=ops[name].dtype.name,
                chip=chip,
                remedy="keep values per partition in float32 tiles",
                code="TRN408",
            )
        if op.bitvec and isinstance(value, float):
            self._refuse_attr(f"{name} of a bitvec operator is a float", "an integer", value, chip)

    def _check_combination(self, names: list[str], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        if engine is Engine.SCALAR:
            plain = names in _SCALE_AND_SHIFT
            legal = chip.has("scalar_alu") or (plain and not attrs["reverse0"] and not attrs["reverse1"])
        else:
            legal = "rsqrt" in names and set(names) <= {"rsqrt", "add", "multiply"}
        if not legal:
            self.refuse(
                f"{engine.name.lower()} does not execute this combination",
                limit=self.limits[2 if engine is Engine.SCALAR else 3],
                got=" then ".join(names),
                chip=chip,
                remedy="issue it on vector, or use activation",
                code="TRN412",
            )

    def _refuse_attr(self, what: str, limit: str, got: object, chip: Chip) -> None:
        self.refuse(what, limit=limit, got=got, chip=chip, remedy=f"give {limit}", code="TRN411")

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """One operator after the other."""
        result = arrays["data"].reshape(arrays["dst"].shape)
        for i in ("0", "1"):
            if attrs["op" + i] is not None:
                scalar = arrays.get("operand" + i, attrs.get("operand" + i))
                if isinstance(scalar, np.ndarray):
                    scalar = scalar.reshape(-1, *(1,) * (result.ndim - 1))
                result = with_scalar(alu_op(attrs["op" + i]), result, scalar, attrs["reverse" + i])
        return {"dst": result}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements for one operator or two; m = 1 when one is rsqrt, 2 when ScalarE could do it, too."""
        used = [alu_op(attrs[name]).name for name in ("op0", "op1") if attrs[name] is not None]
        m = RSQRT if "rsqrt" in used else ON_SCALAR if used in _SCALE_AND_SHIFT else 0
        return self.streaming(ops, engine, m=m, flops=len(used))
