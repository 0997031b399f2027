# SPDX-License-Identifier: Apache-2.0
"""A captured graph without writes, made node by node.

`torch.func.functionalize` does this for any graph by running it once more, which takes as long as the capture did.
Most nodes stay as they are, and nearly all writes of a step are an optimizer's, to memory that is seen through one
tensor alone: there the result takes the place of what was written. What has to be written otherwise, by a table, is
run by itself, once for each form of its arguments, and so is what an optimizer does to a parameter. Graphs of which
that does not hold, where a write is seen through a view, are left to PyTorch.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from trnlab.frontends.torch.capture.copies import fills
from trnlab.frontends.torch.capture.optimizer_updates import ParameterUpdate
from trnlab.frontends.torch.graph_templates import Functional, GraphTemplate, NotPlainError, pieces
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.pytorch.dispatcher import OpOverload
from trnlab.frontends.torch.pytorch.fakes import FakeTensor
from trnlab.frontends.torch.pytorch.graphs import module_of


def without_writes(first: fx.GraphModule, table: Mapping[Any, Any], functional: Functional) -> fx.GraphModule | None:
    """The graph of `functional(first)`, or None where that has to be asked.

    table: operators that are written otherwise. functional: the graph of a function of new tensors like
    these.
    """
    try:
        return module_of(_Rewriting(first, table, functional).run())
    except NotPlainError:
        return None


class _Rewriting:
    def __init__(self, first: fx.GraphModule, table: Mapping[Any, Any], functional: Functional) -> None:
        self.first, self.table = first, table
        self.graph = fx.Graph()
        self.same: dict[fx.Node, fx.Node] = {}  # results of writes: the node whose tensor they are
        self.now: dict[fx.Node, Any] = {}  # by those nodes: what the tensor is now, in the new graph
        self.order = {node: i for i, node in enumerate(first.graph.nodes)}
        self.last = {node: max((self.order[user] for user in node.users), default=-1) for node in self.order}
        self.views: dict[int, list[fx.Node]] = {}
        for node in self.order:
            for key in _storages(node):
                self.views.setdefault(key, []).append(node)
            if isinstance(node.target, OpOverload) and (target := _written(node)):
                self.same[node] = self._origin(target)
        for node, origin in self.same.items():
            self._check_seen(origin, self.order[node])
        self.plain = {node: plain for node in self.same if (plain := self._plain(node)) is not None}
        alone = [node for node in self.order if node not in self.plain and self._is_made_otherwise(node)]
        self.pieces = _pieces(alone, self.same, functional)

    def run(self) -> fx.Graph:
        for node in self.first.graph.nodes:
            if node.op == "placeholder":
                self.now[node] = self._like(node, self.graph.placeholder(node.target))
            elif node.op == "output":
                self.graph.output(self._mapped(node.args[0]))
            elif node.op != "call_function":
                raise NotPlainError
            elif node.target is operator.getitem:
                self._item(node)
            elif node in self.pieces:
                given = [self.now[self._origin(x)] for x in _tensors(node)]
                self.now[self._origin(node)] = self.pieces[node].put(self.graph, given, node.meta)
            elif not isinstance(node.target, OpOverload):
                raise NotPlainError
            else:
                self.now[self._origin(node)] = self._copied(node, self.plain.get(node, node.target))
        return self.graph

    def _is_made_otherwise(self, node: fx.Node) -> bool:
        return node in self.same or node.target in self.table or isinstance(node.target, ParameterUpdate)

    # -- nodes ------------------------------------------------------------------------------------------------------
    def _origin(self, node: fx.Node) -> fx.Node:
        return self.same.get(node, node)

    def _mapped(self, arguments: Any) -> Any:
        return fx.map_arg(arguments, lambda node: self.now[self._origin(node)])

    def _copied(self, node: fx.Node, target: Any) -> fx.Node:
        arguments = self._mapped(node.args), self._mapped(node.kwargs)
        return self._like(node, self.graph.call_function(target, *arguments))

    @staticmethod
    def _like(node: fx.Node, made: fx.Node) -> fx.Node:
        made.meta = dict(node.meta)
        return made

    def _item(self, node: fx.Node) -> None:
        source, place = self.now[self._origin(node.args[0])], node.args[1]
        self.now[node] = source[place] if isinstance(source, (tuple, list)) else self._copied(node, operator.getitem)

    # -- writes -----------------------------------------------------------------------------------------------------
    def _check_seen(self, origin: fx.Node, at: int) -> None:
        """Nobody sees the memory through another tensor from here on, and the tensor has all of it."""
        if not fills(origin.meta["val"]):
            raise NotPlainError
        for key in _storages(origin):
            for other in self.views[key]:
                later = self.order[other] > at  # made of what it is then
                hidden = self._origin(other) is origin or later or self.last[other] < at
                if other.op == "placeholder" or not hidden:
                    raise NotPlainError

    def _plain(self, node: fx.Node) -> OpOverload | None:
        """The operator of a new value in the place of one that writes."""
        plain = None if node.target in self.table else _functional(node.target)
        return plain if plain not in self.table and _of_one_format(node) else None


class _Call:
    """An operator on tensors of some form."""

    def __init__(self, node: fx.Node, writes: bool) -> None:
        self.target, self.writes = node.target, writes
        given = _tensors(node)
        places = {x: i for i, x in enumerate(given)}
        leaves, self.spec = pytree.tree_flatten((node.args, node.kwargs))
        self.leaves = [(True, places[x]) if isinstance(x, fx.Node) else (False, x) for x in leaves]

    @staticmethod
    def key(node: fx.Node) -> Hashable:
        """What is the same for operators that become the same."""
        given = _tensors(node)
        tensors = [x.meta.get("val") for x in given]
        if not all(isinstance(t, FakeTensor) and not t.is_conj() and not t.is_neg() for t in tensors):
            raise NotPlainError
        forms = tuple((tuple(t.shape), t.stride(), t.dtype, t.device) for t in tensors)
        names = {x: f"%{i}" for i, x in enumerate(given)}
        return node.target, repr(fx.map_arg((node.args, node.kwargs), names.__getitem__)), forms

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        leaves = [tensors[x] if is_tensor else x for is_tensor, x in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = self.target(*args, **kwargs)
        return args[0] if self.writes else result


def _pieces(
    nodes: Sequence[fx.Node], same: Mapping[fx.Node, fx.Node], functional: Functional
) -> dict[fx.Node, GraphTemplate]:
    """What each of these operators becomes: those of one form the same."""
    keys = {node: _Call.key(node) for node in nodes}
    first = {key: node for node, key in reversed(keys.items())}
    calls = [_Call(node, node in same) for node in first.values()]
    likes = [[x.meta["val"] for x in _tensors(node)] for node in first.values()]
    made = dict(zip(first, pieces(calls, likes, functional)))
    return {node: made[key] for node, key in keys.items()}


def _tensors(node: fx.Node) -> list[fx.Node]:
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return list(dict.fromkeys(x for x in leaves if isinstance(x, fx.Node)))


def _written(node: fx.Node) -> fx.Node | None:
    """The tensor that an operator writes, of which its result is another name."""
    schema = node.target._schema
    if not schema.is_mutable:
        return None
    names = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if names != [schema.arguments[0].name] or len(schema.returns) != 1 or not node.args:
        raise NotPlainError
    if schema.returns[0].alias_info is None or not schema.name.endswith("_"):
        raise NotPlainError
    target = node.args[0]
    if not isinstance(target, fx.Node) or not isinstance(target.meta.get("val"), Tensor):
        raise NotPlainError
    return target


def _storages(node: fx.Node) -> list[int]:
    """Storages of the tensors that a node stands for."""
    found = []
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, Tensor):
            found.append(value.untyped_storage()._cdata)
    return found


def _functional(op: OpOverload) -> OpOverload | None:
    """`aten.add.Tensor` for `aten.add_.Tensor`."""
    packet = getattr(getattr(torch.ops, op.namespace), op._schema.name.split("::")[1][:-1], None)
    name = op._schema.overload_name
    if packet is None or name not in packet.overloads():
        return None
    found: OpOverload = getattr(packet, name)
    same = [str(a.type) for a in found._schema.arguments] == [str(a.type) for a in op._schema.arguments]
    return found if same and len(found._schema.returns) == 1 else None


def _of_one_format(node: fx.Node) -> bool:
    """Whether the result has the format of what is written without being made so."""
    kind = node.meta["val"].dtype
    for each in node.all_input_nodes:
        value = each.meta.get("val")
        if not isinstance(value, Tensor) or value.dtype is not kind:
            return False
    return kind.is_floating_point
