# SPDX-License-Identifier: Apache-2.0
"""The three ways a sample runs on the device, and how a refusal or an error finds its way to the sample it is of.

All samples of an operator and dtype are captured as one graph, imported one by one (which is cheap), and those that
came through are compiled and run as one program. Only when that is refused are they compiled singly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from tools.opdb.samples import Sample, gradients, leaves_of
from tools.opdb.verdicts import OutOfTime, Verdict, of_error
from trnlab.frontends.common import engine
from trnlab.frontends.torch.capture import tracing
from trnlab.frontends.torch.capture.import_fx import import_fx
from trnlab.frontends.torch.device.buffers import ChipArray, tensor_from

Results = list[Any] | Verdict


@dataclass
class Item:
    """Forward or backward of one sample: where its results lie in the captured graph, or what became of it."""

    sample: int
    part: str
    results: list[Any] = field(default_factory=list)  # FX nodes, or plain values
    verdict: Verdict | None = None


@dataclass
class Trial:
    """A sample and the gradients that go into its outputs; `backward` says whether there is a backward pass."""

    sample: Sample
    weights: list[Tensor]
    backward: bool


def eager(trial: Trial) -> dict[str, Results]:
    """The sample on `neuron` tensors, operator by operator."""
    found: dict[str, Results] = {}
    try:
        leaves = leaves_of(trial.sample, "neuron")
        outputs = trial.sample.call(leaves, "neuron")
        found["forward"] = [_on_cpu(o) for o in outputs]
    except Exception as error:
        return {"forward": of_error(error)}
    if trial.backward:
        try:
            grads = gradients(outputs, leaves, [w.to("neuron") for w in trial.weights])
            found["backward"] = [_on_cpu(g) for g in grads]
        except Exception as error:
            found["backward"] = of_error(error)
    return found


def _on_cpu(value: Any) -> Any:
    return value.detach().to("cpu") if isinstance(value, Tensor) else value


class Captured:
    """The samples of one operator and dtype as one FX graph, with the results of each."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = list(trials)
        self.inputs: list[Tensor] = []
        self.items: list[Item] = []
        self.module: fx.GraphModule | None = None
        self._numbers: list[tuple[Item, list[Any]]] = []
        self._capture()

    def _capture(self) -> None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        spans, fakes = [], []
        for i, trial in enumerate(self.trials):
            try:
                made = [tracing.fake_like(mode, x, "neuron") for x in (*trial.sample.tensors, *trial.weights)]
            except Exception as error:
                self.items.append(Item(i, "forward", verdict=of_error(error)))
                continue
            spans.append((i, len(fakes), len(fakes) + len(made)))
            fakes.extend(made)
            self.inputs.extend(x.detach() for x in (*trial.sample.tensors, *trial.weights))
        returned: list[Tensor] = []

        def traced(lines: Any, *given: Tensor) -> list[Tensor]:
            returned.clear()
            self._numbers.clear()
            for i, begin, end in spans:
                self._numbers.extend(_traced(self.trials[i], i, given[begin:end]))
            returned.extend(v for _, values in self._numbers for v in values if isinstance(v, Tensor))
            return list(returned)

        self.module = tracing.trace(traced, fakes, mode)
        nodes = iter(next(n for n in self.module.graph.nodes if n.op == "output").args[0])
        for item, values in self._numbers:
            item.results = [next(nodes) if isinstance(v, Tensor) else v for v in values]
            self.items.append(item)

    def run(self, engines: dict[str, engine.GraphEngine]) -> dict[str, list[tuple[Item, Results]]]:
        """Every item on every engine."""
        ready = [item for item in self.items if item.verdict is None]
        for item in ready:
            try:
                self._graph([item])
            except Exception as error:
                item.verdict = of_error(error)
        refused = [(item, item.verdict) for item in self.items if item.verdict is not None]
        ready = [item for item in ready if item.verdict is None]
        return {name: [*refused, *self._run_all(ready, e)] for name, e in engines.items()}

    def _run_all(self, items: list[Item], on: engine.GraphEngine) -> list[tuple[Item, Results]]:
        """All items as one program; one by one where that does not come through."""
        if not items:
            return []
        try:
            return list(zip(items, self._execute(items, on)))
        except OutOfTime as error:
            return [(item, of_error(error)) for item in items]
        except Exception as error:
            if len(items) == 1:
                return [(items[0], of_error(error))]
        return [pair for item in items for pair in self._run_all([item], on)]

    def _graph(self, items: Sequence[Item]) -> Any:
        """What the importer makes of the part of the graph that these items need."""
        assert self.module is not None
        graph = fx.Graph()
        known: dict[fx.Node, fx.Node] = {}
        wanted = _needed([r for item in items for r in item.results if isinstance(r, fx.Node)])
        for node in self.module.graph.nodes:
            if node in wanted or node.op == "placeholder":
                known[node] = graph.node_copy(node, known.__getitem__)
        graph.output(tuple(known[r] for item in items for r in item.results if isinstance(r, fx.Node)))
        module = fx.GraphModule(self.module, graph)
        return module, import_fx(module, "opdb")

    def _execute(self, items: Sequence[Item], on: engine.GraphEngine) -> list[list[Any]]:
        module, imported = self._graph(items)
        names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        seeds = [torch.ones(v.shape, dtype=torch.int32) for v in imported.graph.inputs]
        arrays = [
            ChipArray(s if n is None else self.inputs[names.index(n)]).array() for n, s in zip(imported.inputs, seeds)
        ]
        program: Callable[..., Any] = on.compile(imported.graph)
        computed = dict(zip(imported.outputs, program(arrays)))
        returned = next(n for n in module.graph.nodes if n.op == "output").args[0]
        tensors = iter(tensor_from(computed[i], node.meta["val"].dtype, "cpu") for i, node in enumerate(returned))
        return [[next(tensors) if isinstance(r, fx.Node) else r for r in item.results] for item in items]


def _needed(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _traced(trial: Trial, index: int, given: Sequence[Tensor]) -> list[tuple[Item, list[Any]]]:
    """Forward and backward of one sample on fake tensors; an error becomes the item's verdict."""
    count = len(trial.sample.tensors)
    leaves = [x.detach() for x in given[:count]]
    for x, like in zip(leaves, trial.sample.tensors):
        x.requires_grad_(like.requires_grad)
    try:
        with torch.enable_grad():
            outputs = trial.sample.call(leaves, "neuron")
    except Exception as error:
        return [(Item(index, "forward", verdict=of_error(_as_refusal(error))), [])]
    found = [(Item(index, "forward"), [o.detach() if isinstance(o, Tensor) else o for o in outputs])]
    if trial.backward:
        try:
            found.append((Item(index, "backward"), gradients(outputs, leaves, given[count:])))
        except Exception as error:
            found.append((Item(index, "backward", verdict=of_error(_as_refusal(error))), []))
    return found


def _as_refusal(error: Exception) -> Exception:
    """What `tracing.trace` would have made of an error had it not been caught for the sake of the other samples."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        from trnlab.frontends.torch.findings.locations import RecordLines

        return tracing._depends_on_values(error, RecordLines())
    return error
