# SPDX-License-Identifier: Apache-2.0
"""`torch.compile(backend="neuron")`: each graph that PyTorch hands over becomes a program of the simulated chip.

AOTAutograd delivers functional graphs of ATen operators: a forward and a backward graph, or one graph where no
gradients are needed (an optimizer's step, inference). Writes to inputs arrive as `copy_` at the end and become
outputs that overwrite inputs. PyTorch finds this backend by name through the `torch_dynamo_backends` entry point.
"""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy

from trnlab.frontends.common import engine
from trnlab.frontends.torch import eager, kernels, recording  # noqa: F401  (kernels hears of calls while PyTorch traces)
from trnlab.frontends.torch.capture.import_fx import Imported, decompositions, import_fx
from trnlab.frontends.torch.device.buffers import ChipArray, tensor_from
from trnlab.frontends.torch.device.dlpack import as_neuron
from trnlab.frontends.torch.device.types import is_opaque
from trnlab.frontends.torch.distributed.environment import guard
from trnlab.frontends.torch.draws import new_seed
from trnlab.frontends.torch.python_numbers import PythonNumbers, is_host_number
from trnlab.frontends.torch.pytorch.dispatcher import OpOverload
from trnlab.frontends.torch.pytorch.fakes import FakeScriptObject, unset_fake_temporarily
from trnlab.frontends.torch.pytorch.places import LOGGER_OF_FRAMES
from trnlab.frontends.torch.pytorch.tracing import (
    CompileContext,
    TracingContext,
    aot_autograd,
    follow_recurrent_layers,
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from trnlab.guards.collected import collected
from trnlab.runtime.notices import say

follow_recurrent_layers()

_COPY = torch.ops.aten.copy_.default


class _GivenUp(logging.Filter):
    """Hears PyTorch say that it compiles a function no more, and says what that means here.

    A filter, since PyTorch removes handlers of its loggers whenever logging is set up anew. It hears warnings that
    are switched off, too: that steps leave the chip must be said whatever PyTorch's own messages are set to.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._enabled = logger.isEnabledFor
        logger.isEnabledFor = lambda level: level == logging.WARNING or self._enabled(level)  # type: ignore
        logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`; what is switched on passes."""
        if str(record.msg).startswith("torch._dynamo hit config."):
            given: Any = record.args
            limit, most, function = (str(x) for x in given[:3])
            say(
                f"{function} was compiled {most} times: in further forms its operators are programs of their "
                f"own, one by one; give batches one shape, or raise torch._dynamo.config.{limit}"
            )
        return self._enabled(record.levelno)


_GivenUp(logging.getLogger(LOGGER_OF_FRAMES))


def neuron(module: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend. options: {"freezing": True}: parameters and buffers of inference are brought into the form that
    each run reads once (`compiler.prepared`), and again when they were written to; what is written past PyTorch's
    count of versions (`.data`) is not noticed, as with inductor's option of this name.

    Raises UnsupportedOpError (inside PyTorch's own exception) that lists all operators without a lowering.
    """
    guard()
    return _backend(bool((options.get("options") or {}).get("freezing")))(module, examples)


@cache
def _backend(freezing: bool) -> Callable[..., Any]:
    return aot_autograd(
        fw_compiler=_compiler("forward"),
        bw_compiler=_compiler("backward"),
        inference_compiler=_compiler("graph", freezing),
        decompositions=decompositions(),
        partition_fn=_partition,
        keep_inference_input_mutations=True,
    )


def _partition(module: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward graph. What was drawn at random is kept for the backward pass, also where checkpointing
    asks for all to be computed again: each graph has a seed of its own."""
    for node in module.graph.nodes:
        if isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
            results = [n for n in node.users if n.target is operator.getitem]
            for drawn in (node, *results):
                drawn.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(module, inputs, **options)


def _compiler(part: str, freezing: bool = False) -> Callable[..., Any]:
    def compile(module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        return make_boxed_func(CompiledGraph(module, f"{part}_{_frame()}", _static_inputs() if freezing else ()))

    return compile


def _static_inputs() -> tuple[int, ...]:
    """Placeholders, by number, that are parameters and buffers of modules, in what AOTAutograd compiles now."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return () if metadata is None else tuple(metadata.static_input_indices or ())


def _frame() -> int:
    """Number of the compiled function: the same when it is compiled again, so a recompilation can be explained."""
    compile_id = CompileContext.current_compile_id()
    return (compile_id.frame_id or 0) if compile_id is not None else 0


class CompiledGraph:
    """One graph of AOTAutograd as a function of tensors."""

    def __init__(self, module: fx.GraphModule, name: str, frozen: Sequence[int] = ()) -> None:
        """frozen: placeholders, by number, whose tensors stay as they are; see `neuron`."""
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._position = {n.name: i for i, n in enumerate(placeholders)}
        self._numbers = PythonNumbers(module)
        self._objects = {i: n for i, n in enumerate(placeholders) if is_opaque(n.meta.get("val"))}
        self._plan = [
            item if item in self._numbers else _planned(item, _owners(module)) for item in _returned_by(module)
        ]
        owners = [item.owner for item in self._plan if isinstance(item, _View)]
        self._shown = Counter(owners)
        self._computed = {n: i for i, n in enumerate(dict.fromkeys(n for n in owners if n.op != "placeholder"))}
        self._module, self._name, self._frozen = module, name, tuple(frozen)
        self._versions: list[tuple[int, int]] = []  # of frozen tensors, as they were prepared
        self._aliases = _take_out_writes(module, list(self._computed))
        self._compile()

    def _compile(self) -> None:
        with collected() as self._guards:  # of kernels and groups, into which Dynamo does not look
            self.imported: Imported = import_fx(self._module, self._name, self._aliases)
        self._place = {fx_place: i for i, fx_place in enumerate(self.imported.outputs)}
        names = {n for n, i in self._position.items() if i in self._frozen}
        frozen = [i for i, n in enumerate(self.imported.inputs) if n in names]
        self._program = engine.current().compile(self.imported.graph, frozen)
        lengths = {v.name: v.shape for v in self.imported.graph.inputs}
        with unset_fake_temporarily():
            self._scales = {name: torch.zeros(lengths[name]) for name in self.imported.states}

    def __call__(self, *args: Any) -> list[Any]:
        """Run the program on tensors; returns what AOTAutograd expects of the graph."""
        others = self._other_objects(args), self._other_weights(args)
        if any(others) or any(guards.failed() for guards in self._guards):
            self._compile()
        known = self._numbers.known(args)
        recording.flush()
        without_values = getattr(engine.current(), "stand_in", None)
        if without_values is not None:
            inputs = {name: args[i] for name, i in self._position.items()}
            self._program(inputs)  # type: ignore[arg-type]
            stand_ins = {n: without_values(n.meta["val"]) for n in self._computed}
            return [self._returned(item, stand_ins | known, args) for item in self._plan]
        eager.begin()
        given = {name: args[i] for name, i in self._position.items()} | self._numbers.inputs(known)
        graph = self.imported.graph
        bound = [
            ChipArray(self._input(v.name, n, given), exact=n in self.imported.exact or n is None)
            for v, n in zip(graph.inputs, self.imported.inputs)
        ]
        results = self._program([b.array() for b in bound])
        engine.shapes_seen(self._name, [b.tensor.shape for b in bound])
        for i, j in graph.aliases.items():
            bound[j].store(results[i])
        made = {n: _result(n, results[self._place[i]]) for n, i in self._computed.items()}
        return [self._returned(item, made | known, args) for item in self._plan]

    def _other_objects(self, args: Sequence[Any]) -> bool:
        """Whether a process group is not the one that the program was made for; from now on it is."""
        changed = {n: args[i] for i, n in self._objects.items() if args[i] is not n.meta["val"].real_obj}
        for n, group in changed.items():
            n.meta["val"] = FakeScriptObject(group, n.meta["val"].script_class_name, group)
        return bool(changed)

    def _other_weights(self, args: Sequence[Any]) -> bool:
        """Whether frozen tensors are not those that were prepared, or were written to; from now on they are."""
        before, self._versions = self._versions, [(id(args[i]), args[i]._version) for i in self._frozen]
        return bool(before) and before != self._versions

    def _input(self, own: str, placeholder: str | None, given: Mapping[str, Any]) -> Any:
        """A tensor that was given, a state of the program, or a seed."""
        if placeholder is not None:
            return given[placeholder]
        return self._scales[own] if own in self._scales else new_seed(self.imported.shards.get(own, 0))

    def _returned(self, planned: Any, made: dict[fx.Node, Any], args: Sequence[Any]) -> Any:
        if isinstance(planned, fx.Node):
            return made[planned]
        if not isinstance(planned, _View):
            return planned
        owner = planned.owner
        if owner not in made:
            return planned.of(args[self._position[owner.name]])
        view = planned.of(made[owner])
        # Autograd forbids writes to a view that its function made, but where nothing else returned shows this memory
        # the view is for whoever called a tensor like others, as it is on the host.
        return view.data if planned.node is not owner and self._shown[owner] == 1 else view


@dataclass(frozen=True)
class _View:
    """A tensor that the graph returns: `node`, which shows memory of `owner`, a result or a placeholder."""

    node: fx.Node
    owner: fx.Node

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the graph returns, where `tensor` is the owner: itself (or a process group), or a view of it."""
        if self.node is self.owner:
            return tensor
        fake = self.node.meta["val"]
        offset = int(fake.storage_offset()) - int(self.owner.meta["val"].storage_offset())
        seen = tensor if tensor.dtype == fake.dtype else tensor.view(fake.dtype)
        return seen.as_strided(_ints(fake.shape), _ints(fake.stride()), seen.storage_offset() + offset)


def _ints(sizes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(n) for n in sizes)


def _returned_by(module: fx.GraphModule) -> Sequence[Any]:
    return next(n for n in module.graph.nodes if n.op == "output").args[0]  # type: ignore[return-value]


def _owners(module: fx.GraphModule) -> dict[Any, fx.Node]:
    """For each storage of the fake tensors the node that made it."""
    owners: dict[Any, fx.Node] = {}
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and node.op != "output":
            owners.setdefault(_storage(value), node)
    return owners


def _storage(fake: torch.Tensor) -> Any:
    return StorageWeakRef(fake.untyped_storage())


def _planned(item: Any, owners: dict[Any, fx.Node]) -> _View | int | None:
    """What the graph returns in one place; a `copy_` stands for what it copies, a size for its number."""
    value = item.meta["val"] if isinstance(item, fx.Node) else item
    if isinstance(value, (int, torch.SymInt)):
        return int(value)
    if not isinstance(item, fx.Node):
        return item  # type: ignore[no-any-return]
    if is_opaque(value):
        return _View(item, item)
    node: Any = item.args[1] if item.target is _COPY else item
    owner = owners[_storage(node.meta["val"])]
    return _View(node, node if owner.op == "get_attr" else owner)


def _result(node: fx.Node, array: Any) -> torch.Tensor:
    """A result with the strides that PyTorch would give it."""
    fake = node.meta["val"]
    made = tensor_from(array, fake.dtype, "cpu")
    if made.stride() != _ints(fake.stride()):
        made = torch.empty_strided(_ints(fake.shape), _ints(fake.stride()), dtype=fake.dtype).copy_(made)
    return as_neuron(made) if fake.device.type == "neuron" else made


def _take_out_writes(module: fx.GraphModule, computed: list[fx.Node]) -> dict[int, str]:
    """Make the graph return `computed` and then what it wrote to inputs; says which output overwrites which input."""
    aliases: dict[int, str] = {}
    outputs = list(computed)
    for node in list(module.graph.nodes):
        if node.target is _COPY:
            aliases[len(outputs)] = node.args[0].name
            outputs.append(node.args[1])
            node.replace_all_uses_with(node.args[1])
    output = next(n for n in module.graph.nodes if n.op == "output")
    output.args = (tuple(outputs),)
    for node in reversed(list(module.graph.nodes)):
        if node.target is _COPY:
            module.graph.erase_node(node)
    for node in reversed(list(module.graph.nodes)):  # numbers that were only returned
        if not node.users and node.op == "call_function" and is_host_number(node):
            module.graph.erase_node(node)
    return aliases
