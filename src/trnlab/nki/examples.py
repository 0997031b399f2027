# SPDX-License-Identifier: Apache-2.0
"""Instructions as kernel authors meet them: their call in nki.isa, their example as a kernel, the time it takes."""

from __future__ import annotations

import inspect
import linecache
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab import chips
from trnlab.chips.spec import Chip
from trnlab.isa.base import Instruction
from trnlab.nki import collectives, isa, language
from trnlab.nki.kernel import Kernel
from trnlab.nki.ranks import RankedKernel
from trnlab.timeline import Timeline
from trnlab.units import format_time

# What is in nki.isa and is no instruction.
QUERIES: Mapping[str, str] = {
    "get_nc_version": "newest = nisa.get_nc_version() >= nisa.nc_version.gen4",
    "get_nc_sub_version": "revision = nisa.get_nc_sub_version()",
}


def signature(name: str) -> str:
    """The call as a kernel writes it; empty for an instruction that kernels reach by other names only."""
    module = isa if hasattr(isa, name) else collectives
    function = getattr(module, name, None)
    if function is None:
        return ""
    parameters = [_parameter(p) for p in inspect.signature(function).parameters.values()]
    call = f"nki.{module.__name__.rpartition('.')[2]}.{name}({', '.join(parameters)})"
    return textwrap.fill(call, 110, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)


def _parameter(parameter: inspect.Parameter) -> str:
    default = parameter.default
    shown = getattr(default, "name", None) or repr(default)
    return parameter.name if default is parameter.empty else f"{parameter.name}={shown}"


def runs_on(instr: Instruction, chip: Chip) -> bool:
    """Whether the chip has the instruction and what its example is launched on."""
    return instr.exists_on(chip) and (instr.example_on[0] == 1 or chip.has("logical_cores"))


def example_kernel(instr: Instruction, chip: Chip) -> Kernel | RankedKernel:
    """The example as a kernel without arguments. Its lines can be shown in messages."""
    source = f"def {instr.name}_example():\n" + textwrap.indent(inspect.cleandoc(instr.example), "    ") + "\n"
    file = f"<example of {instr.name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"nl": language, "nisa": isa, "ncc": collectives}
    exec(compile(source, file, "exec"), names)
    cores, ranks = instr.example_on
    kernel = Kernel(names[f"{instr.name}_example"], chip=chip)
    launched = kernel[cores] if cores > 1 else kernel
    return RankedKernel(launched, ranks) if ranks > 1 else launched


def times(instr: Instruction) -> list[str]:
    """For each chip what the instruction of the example takes there: until its engine is free, until it is done."""
    lines = []
    for name in chips.NAMES:
        chip = chips.get(name)
        if runs_on(instr, chip):
            busy, latency = _last(example_kernel(instr, chip).timeline(), instr.name)
            lines.append(f"{name}: engine occupied for {format_time(busy)}, result after {format_time(latency)}")
    return lines


def _last(timeline: Timeline, name: str) -> tuple[int, int]:
    """Picoseconds of the last instruction called `name`: until its engine is free, until its result is usable."""
    mine = [i for i, op in enumerate(timeline.ops) if name.endswith(op.name)]  # barriers go by their kind
    rows = np.flatnonzero(np.isin(timeline.op, mine))
    if not len(rows):
        return 0, 0
    row = rows[-1]
    return int(timeline.end[row] - timeline.start[row]), int(timeline.done[row] - timeline.start[row])
