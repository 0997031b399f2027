# SPDX-License-Identifier: Apache-2.0
"""A function of tensors and variables as one graph, in which written variables are donated inputs.

    captured = capture(function, arguments, {}, "step")
    print(captured.graph)

Inputs of the graph are the tensors among the arguments, then the variables and tensors from outside that the function
touches: weights, the optimizer's state, its learning rate and step count, moving averages, metrics, states of random
generators. Outputs are the tensors of the result, then each variable that the function writes, in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trnlab.errors import TrnlabError, UnsupportedOpError
from trnlab.frontends.common.captured import Role
from trnlab.frontends.stablehlo import SegmentedProgram, import_module
from trnlab.frontends.stablehlo.formats import in_precision
from trnlab.frontends.tensorflow import refusals
from trnlab.frontends.tensorflow.lower import Lowered, lower
from trnlab.graph.ir import Graph
from trnlab.runtime import session


@dataclass
class CapturedFunction:
    """A captured function: a program, and what its arguments and results are."""

    program: SegmentedProgram
    inputs: list[Role]
    captures: list[tf.Variable | tf.Tensor]  # variables and constant tensors, which `place` of roles counts
    # dtypes of the results that are the function's own; after them come the variables that it writes, in the
    # order of `written`
    kinds: list[tf.DType]
    written: list[tf.Variable]
    result: Any  # what the function returned, with a `ResultTensor` for each tensor

    @property
    def graph(self) -> Graph | None:
        """The graph, unless a loop of unknown length made several."""
        return self.program.graph


@dataclass(frozen=True)
class ResultTensor:
    """A tensor of the result: result `index` of the program."""

    index: int


def leaves_of(arguments: Any, name: str) -> list[Any]:
    """The tensors and plain values in nested arguments. Raises UnsupportedOpError (TRN243) for sparse ones."""
    leaves = tf.nest.flatten(arguments)
    for leaf in leaves:
        if isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices)):
            raise refusals.sparse(f"a tf.{type(leaf).__name__}", name)
    return leaves


def capture(function: Callable[..., Any], args: Sequence[Any], kwargs: Any, name: str) -> CapturedFunction:
    """Capture function(*args, **kwargs); tensors among the arguments become inputs, all else is fixed.

    Raises UnsupportedOpError with the user's line for what cannot run on the chip.
    """
    arguments = (tuple(args), dict(kwargs))
    leaves = leaves_of(arguments, name)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor)]
    _check_formats([leaves[i] for i in places], name)
    returned: list[Any] = []

    def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
        given = list(leaves)
        for place, tensor in zip(places, tensors):
            given[place] = tensor
        packed_args, packed_kwargs = tf.nest.pack_sequence_as(arguments, given)
        results, structure = _flattened(function(*packed_args, **packed_kwargs))
        returned[:] = [structure]
        return results

    lowered = lower(flat, [tf.TensorSpec(leaves[i].shape, leaves[i].dtype) for i in places], name)
    inputs = [Role("batch", f"batch{i}", place) for i, place in enumerate(places)]
    inputs += [_role(value, i) for i, value in enumerate(lowered.captures)]
    program = _imported(lowered, name, [role.name for role in inputs])
    last = len(program.result_types)
    written = [lowered.captures[lowered.aliases[i] - len(places)] for i in range(len(lowered.results), last)]
    return CapturedFunction(program, inputs, lowered.captures, lowered.results, written, returned[0])


def _imported(lowered: Lowered, name: str, names: Sequence[str]) -> SegmentedProgram:
    """The module as a program, with the user's lines in it and in what is refused."""
    lines = lowered.lines
    try:
        donated = {argument: result for result, argument in lowered.aliases.items()}
        program = import_module(lowered.text, name, names=names, donated=donated)
    except TrnlabError as error:
        error.where = lines.resolved(error.where)
        raise
    for graph in program.graphs():
        for op in graph.ops:
            op.loc = lines.resolved(op.loc)
    return in_precision(program, session.asked())


def _flattened(result: Any) -> tuple[list[tf.Tensor], Any]:
    """The tensors of a result in order, and the result with their numbers in their places."""
    leaves = tf.nest.flatten(result, expand_composites=True)
    tensors: list[tf.Tensor] = []
    shown: list[Any] = []
    for leaf in leaves:
        if leaf is None:
            shown.append(None)
            continue
        shown.append(ResultTensor(len(tensors)))
        tensors.append(tf.identity(tf.convert_to_tensor(leaf)))
    return tensors, tf.nest.pack_sequence_as(result, shown, expand_composites=False)


def _role(value: tf.Variable | tf.Tensor, place: int) -> Role:
    if not isinstance(value, tf.Variable):
        return Role("outside", f"outside{place}", place)
    return Role("parameter" if value.trainable else "buffer", value.name.removesuffix(":0"), place)


def _check_formats(tensors: Sequence[tf.Tensor], name: str) -> None:
    for tensor in tensors:
        if tensor.dtype == tf.float64:
            raise UnsupportedOpError(
                f"{name!r} is given a float64 tensor, and the chip has no such format",
                code="TRN212",
                got=f"float64{list(tensor.shape)}",
                remedy="convert it with tf.cast(x, tf.float32)",
            )
        if tensor.dtype in (tf.string, tf.resource, tf.variant):
            raise UnsupportedOpError(
                f"{name!r} is given a tensor of {tensor.dtype.name}, for which the chip has no format",
                code="TRN240",
                remedy="turn strings into numbers before the step, in tf.data or with a StringLookup layer",
            )
