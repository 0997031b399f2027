# SPDX-License-Identifier: Apache-2.0
"""One run of a script in one precision, for `trnlab precision`: as always, and its first step with results kept.

    python -m trnlab.frontends.torch.study '{"script": "train.py", "precision": "fp8", ...}'

Leaves the run's folder, and in it `layers.npz` with the results of products, as the chip computed them, and
`layers.json`, which says what they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from trnlab.files import write_atomic
from trnlab.frontends import vendor_imports
from trnlab.frontends.common.engine import DeviceEngine, use
from trnlab.frontends.torch.findings import provenance
from trnlab.frontends.torch.findings.locations import is_gradient, location_of
from trnlab.frontends.torch.verify.chip import InstrumentedGraph
from trnlab.frontends.torch.verify.steps import StepCounter
from trnlab.graph.ir import Graph, Value
from trnlab.nki.imports import install_imports
from trnlab.runtime import session as sessions
from trnlab.runtime.script import Script, run_script
from trnlab.runtime.session import Session
from trnlab.runtime.settings import Settings

Array = np.ndarray[Any, Any]
MOST_KEPT = 16384  # elements of a result, evenly over it
LAYERS, VALUES = "layers.json", "layers.npz"
_MULTIPLY = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "attention",
    "_scaled_mm",
    "grouped_dot",
    "grouped_outer",
)


class StepLimit(StepCounter):
    """Ends the script, as if it were over, when it has done enough."""

    def _stop(self) -> None:
        if len(self.losses) >= self.limit:
            raise SystemExit(0)


@dataclass
class StudyEngine(DeviceEngine):
    """Runs graphs on the chip; those of the first step again, to keep what their products gave."""

    steps: StepLimit
    entries: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)

    def compile(self, graph: Graph, frozen: Sequence[int] = ()) -> Callable[[Sequence[Array]], list[Array]]:
        """See `GraphEngine`."""
        plain, now = super().compile(graph), sessions.current()
        source = provenance.of(graph)

        def run(inputs: Sequence[Array]) -> list[Array]:
            self.steps.starts(graph.name)
            if source is None or self.steps.number > 1:
                return plain(inputs)
            before = [np.array(x) for x in inputs]
            outputs = plain(inputs)
            if graph.start is not None:  # scales of what this step saw, which is what it began with
                before[graph.start.state] = np.array(inputs[graph.start.state])
            found, _ = InstrumentedGraph(graph, source, now).run(before, outputs)
            self._keep(graph, source, found)
            return outputs

        return run

    def optimizer_stepped(self) -> None:
        """See `engine.optimizer_stepped`."""
        self.steps.stepped()

    def step_done(self, loss: float, tokens: int) -> None:
        """See `GraphEngine`."""
        super().step_done(loss, tokens)
        self.steps.done(loss)

    def _keep(self, graph: Graph, source: provenance.Provenance, found: Mapping[Value, Array]) -> None:
        for node, held in source.values.items():
            value = held[0] if isinstance(held, (list, tuple)) and held else held
            name = str(node.target).split(".")[1] if str(node.target).count(".") else ""
            where = location_of(node)
            if not isinstance(value, Value) or value not in found or name not in _MULTIPLY or where is None:
                continue
            array = np.asarray(found[value], np.float32).reshape(-1)
            key = f"{graph.name}.{node.name}"
            self.arrays[key] = array[:: max(1, -(-array.size // MOST_KEPT))]
            back = is_gradient(node.meta.get("stack_trace") or "") or graph.name.startswith("backward")
            self.entries.append(
                {"key": key, "layer": where.layer or "model", "gradient": back, "op": name, **_cut(value, found)}
            )


def _cut(value: Value, found: Mapping[Value, Array]) -> dict[str, int]:
    """Elements of the FP8 operands behind a scaled product: at the format's end, at zero, and all."""
    counts = {"ended": 0, "zeros": 0, "quantized": 0}
    waiting = [value]
    while waiting:
        op = waiting.pop().op
        if op is None or op.name not in ("convert", "multiply", "add", "dot_general", "reshape", "transpose"):
            continue
        if op.name != "dot_general":
            waiting.extend(op.operands[:1])
            continue
        for operand in op.operands:
            bits = found.get(operand)
            if bits is not None and operand.dtype.is_float and operand.dtype.itemsize == 1:
                numbers = np.abs(np.asarray(bits).astype(np.float32))
                most = float(ml_dtypes.finfo(operand.dtype.numpy).max)  # type: ignore[no-untyped-call]
                counts["ended"] += int((numbers >= most).sum())
                counts["zeros"] += int((numbers == 0).sum())
                counts["quantized"] += numbers.size
    return counts


def study(script: Script, session: Session, folder: Path, steps: int) -> int:
    """Run the script for so many steps; returns its exit status."""
    engine = StudyEngine(StepLimit(steps))
    with provenance.kept(), use(engine), engine.steps.watching():
        status = run_script(script, session, folder)
    np.savez(folder / VALUES, **engine.arrays)  # type: ignore[arg-type]
    record = {"losses": engine.steps.losses, "results": engine.entries}
    write_atomic(folder / LAYERS, json.dumps(record).encode())
    return status


def main(given: Mapping[str, Any]) -> int:
    """Run what the JSON of the command line says; see `cli.precision`."""
    session = sessions.from_settings(Settings.of_record(given["settings"]))
    install_imports()
    vendor_imports.install()
    return study(Script(Path(given["script"]), given["arguments"]), session, Path(given["out"]), given["steps"])


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
