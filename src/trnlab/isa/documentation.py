# SPDX-License-Identifier: Apache-2.0
"""The documentation page of an instruction, derived from the instruction object."""

from __future__ import annotations

import re
import textwrap
from inspect import cleandoc

from trnlab import chips
from trnlab.chips.spec import FEATURES, Chip
from trnlab.isa.base import ANY_DTYPE, MOVABLE, Instruction, OperandSpec
from trnlab.isa.costs import COST_CLASSES


def page(instr: Instruction) -> str:
    """Signature, prose, operands, attributes, limits, engines and cost, generations, an example, and the source, as
    Markdown."""
    sections = [
        f"# {instr.name}",
        f"    {signature(instr)}",
        cleandoc(instr.__doc__ or ""),
        _list("Operands", [_operand(spec) for spec in instr.operands]),
        _list("Attributes", [f"{name} = {value!r}" for name, value in sorted(instr.attrs.items())]),
        _list("Limits", rule_lines(instr)),
        _list("Engines and cost", _engines(instr)),
        _list("Generations", generations(instr)),
        _example(instr),
        f"Opcode {instr.opcode}. Source: {instr.source}.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def signature(instr: Instruction) -> str:
    """The call as it is written with the builder, on several lines where it is long."""
    names = list(dict.fromkeys(spec.name for spec in instr.operands))
    required = [s.name for s in instr.operands if not s.optional]
    optional = [f"{n}={instr.attrs.get(n)!r}" for n in names if n not in required]
    attrs = [f"{n}={v!r}" for n, v in sorted(instr.attrs.items()) if n not in names]
    call = f"{instr.name}({', '.join([*required, *optional, *attrs])})"
    return textwrap.fill(call, 110, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)


def rule_lines(instr: Instruction) -> list[str]:
    """Every rule beyond those of all instructions, in words."""
    lines = [f"on chips with {instr.feature}"] if instr.feature else []
    lines += [f"{letter} is at most {limit}" for letter, limit in instr.sizes.items()]
    lines += [f"{letter} is at least {limit}" for letter, limit in instr.least.items()]
    lines += [f"{letter} is a multiple of {step}" for letter, step in instr.multiples.items()]
    if instr.same_dtype:
        lines.append(f"{' and '.join(instr.same_dtype)} have one format")
    if instr.not_both_psum:
        lines.append(f"{' and '.join(instr.not_both_psum)} are not both in PSUM")
    if instr.indirect:
        lines.append(f"on chips with tensor_indirection an index may pick columns of {', '.join(instr.indirect)}")
    return [*lines, *instr.limits]


def _operand(spec: OperandSpec) -> str:
    shape = f" [{', '.join(spec.shape)}]" if any(spec.shape) else ""
    memories = " or ".join(m.name for m in sorted(spec.memories, reverse=True))
    named = {ANY_DTYPE: "any format", MOVABLE: "any format, packed ones too"}
    rest = sorted(ANY_DTYPE - spec.dtypes)
    few = f"any format but {', '.join(rest)}" if len(rest) < len(spec.dtypes) else ", ".join(sorted(spec.dtypes))
    formats = named.get(spec.dtypes, few)
    notes = [
        text
        for text, holds in (
            ("optional", spec.optional),
            ("or a number", spec.immediate),
            ("read and written", spec.rw),
            ("registers of the engine", spec.state),
        )
        if holds
    ]
    return f"{spec.name} ({'; '.join([spec.role, *notes])}){shape}: {memories}; {formats}"


def _engines(instr: Instruction) -> list[str]:
    lines = []
    for engine in instr.engines:
        need = instr.engine_features.get(engine)
        lines.append(engine.name.lower() + (f", on chips with {need}" if need else ""))
    return [*lines, *(f"`{kind}`: {rule}" for kind, rule in cost_classes(instr).items())]


def generations(instr: Instruction) -> list[str]:
    """What each chip makes of the instruction: the engines that have it, and what its rules depend on."""
    text = " ".join([*rule_lines(instr), *_engines(instr)])
    features = [name for name in FEATURES if re.search(rf"\b{name}\b", text)]
    return [f"{name}: {_on(instr, chips.get(name), features)}" for name in chips.NAMES]


def _on(instr: Instruction, chip: Chip, features: list[str]) -> str:
    if not instr.exists_on(chip):
        return "not there"
    engines = ", ".join(engine.name.lower() for engine in instr.engines_on(chip))
    has = [name if chip.has(name) else f"no {name}" for name in features]
    return "; ".join([engines, *has])


def _example(instr: Instruction) -> str:
    """The lines of a kernel, and on what to launch it where one core is not enough."""
    if not instr.example:
        return ""
    cores, ranks = instr.example_on
    launch = f"kernel[{cores}]" if cores > 1 else "kernel"
    on = f" (launched as `nki.simulate({launch}, ranks={ranks})`)" if ranks > 1 else ""
    on = f" (launched as `{launch}`)" if cores > 1 == ranks else on
    return f"## Example{on}\n\n" + textwrap.indent(cleandoc(instr.example), "    ")


def cost_classes(instr: Instruction) -> dict[str, str]:
    """The cost classes that the instruction's work can have."""
    stem = instr.name.removeprefix("nc_")
    kinds = {f"pe.{stem}", *(f"{e.name.lower()}.{instr.name}" for e in instr.engines)}
    if instr.cost_kinds:
        return {kind: COST_CLASSES[kind] for kind in instr.cost_kinds}
    return {kind: rule for kind, rule in COST_CLASSES.items() if kind in kinds}


def _list(title: str, lines: list[str]) -> str:
    return "\n".join([f"## {title}", "", *(f"- {line}" for line in lines)]) if lines else ""
