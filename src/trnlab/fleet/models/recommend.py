# SPDX-License-Identifier: Apache-2.0
"""Recommendation models with tables of embeddings (DLRM, arXiv:1906.00091), in the fields of TorchRec's dlrm_main.

Few tables have nearly all rows. Those are divided by rows among all ranks; the others, too short to be divided
evenly, are whole on each rank, as TensorFlow's ranking model keeps tables below its `size_threshold` beside the
network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trnlab.fleet.layers.training import TrainingLayers
from trnlab.fleet.models import counts
from trnlab.fleet.models.counts import Counted
from trnlab.fleet.models.fields import ConfigurationFields, wrong
from trnlab.fleet.models.unpartitioned import ID, UnpartitionedModel
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.grad.builder import GradientBuilder
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32, int32

SHORT = 8000  # rows of a table below which it is not divided (documented: `size_threshold` of TF's ranking model)
CRITEO = 4_195_197_692  # samples of Criteo's terabyte of clicks that are trained on in an epoch (MLPerf)
NUMBER = 4  # bytes of a number that comes from the host, and of a label


@dataclass(frozen=True)
class Recommender(UnpartitionedModel):
    """A recommender: embedding tables between two networks (DLRM)."""

    dense: int = 0  # numbers of a sample
    rows: tuple[int, ...] = ()  # of each table
    width: int = 0  # of a row
    # bottom, top: widths of both networks, from what goes in to what comes out
    bottom: tuple[int, ...] = ()
    top: tuple[int, ...] = ()

    @property
    def divided(self) -> tuple[int, ...]:
        """Rows of the tables that are divided among ranks."""
        return tuple(rows for rows in self.rows if rows >= SHORT)

    @property
    def short(self) -> tuple[int, ...]:
        """Rows of the tables that each rank has."""
        return tuple(rows for rows in self.rows if rows < SHORT)

    @property
    def used(self) -> int:
        """That a sample meets: both networks, and a row of each table."""
        return self.parameters - (sum(self.rows) - len(self.rows)) * self.width

    def loss(self, layers: TrainingLayers) -> Value:
        """The mean cross entropy of clicks; rows of divided tables come from other ranks, and their gradients go."""
        b, samples = layers.b, layers.share.batch
        x = layers.given((samples, self.dense))
        vectors = [layers.receive((samples, len(self.divided), self.width))]
        for i, rows in enumerate(self.short):
            ids = layers.given((samples, 1), int32)
            vectors.append(b.take_rows(layers.weight(f"table_{i}", rows, self.width), ids))
        x = _perceptron(layers, "bottom", x, self.bottom, last=True)
        stacked = b.concatenate([b.reshape(x, (samples, 1, self.width)), *vectors], 1)
        y = _perceptron(layers, "top", b.concatenate([x, _pairs(b, stacked)], 1), self.top)
        return _lost(b, b.convert(y, float32), layers.given((samples, 1), float32))

    @property
    def everywhere(self) -> int:
        """Parameters that each rank has: both networks, and short tables."""
        return self.parameters - sum(self.divided) * self.width


def dlrm(f: ConfigurationFields) -> Recommender:
    """A network of dense numbers, a row of each table, products of all pairs, and a network of those."""
    f.word("interaction_type", "original", ("original",))
    rows, width = f.counts("num_embeddings_per_feature"), f.count("embedding_dim")
    dense = f.count("num_dense_features", 13)
    inner, outer = f.counts("dense_arch_layer_sizes"), f.counts("over_arch_layer_sizes")
    f.one_of("multi_hot_sizes", ([1] * len(rows), None))
    if inner[-1] != width or outer[-1] != 1:
        raise wrong(
            f.name, f"its networks end in {inner[-1]} and {outer[-1]}, not in an embedding of {width} and in 1"
        )
    if max(rows) < SHORT:
        raise wrong(f.name, f"none of its tables has {SHORT} rows: there is nothing to divide")
    vectors = len(rows) + 1
    bottom, top = (dense, *inner), (width + vectors * (vectors - 1) // 2, *outer)
    model = Recommender(
        f.name,
        0,
        (),
        1,
        patch=1,
        source=f.source,
        items="samples",
        kind="tables",
        optimizer="SGD",
        epoch=f.count("epoch", 0, least=0),
        dense=dense,
        rows=rows,
        width=width,
        bottom=bottom,
        top=top,
    )
    parameters = counts.of_network(model).parameters + sum(model.divided) * width
    brought = NUMBER * dense + ID * len(rows) + NUMBER
    return replace(model, figures=Counted(parameters, counts.operations_of_network(model), brought))


def _perceptron(layers: TrainingLayers, name: str, x: Value, sizes: tuple[int, ...], last: bool = False) -> Value:
    """Products, each with an activation; the last one where asked."""
    for i, out in enumerate(sizes[1:]):
        x = layers.linear(f"{name}_{i}", x, out, bias=True)
        if last or i + 2 < len(sizes):
            x = layers.activation(x, "relu")
    return x


def _pairs(b: GraphBuilder, x: Value) -> Value:
    """[b, V, C] -> [b, V (V - 1) / 2], products of each vector with those before it."""
    samples, count, _ = x.shape
    products = b.dot_general(x, x, ((2,), (2,)), ((0,), (0,)), dt=x.dtype)
    y = b.reshape(products, (samples, count * count))
    return b.concatenate([b.slice_dim(y, 1, i * count, i * count + i) for i in range(1, count)], 1)


def _lost(b: GradientBuilder, wide: Value, labels: Value) -> Value:
    """The mean cross entropy of clicks, of scores [b, 1] in float32."""

    def forward(wide: Value) -> tuple[Value, ...]:
        soft = b.log(b.add(b.exponential(b.negate(b.abs(wide))), 1.0))
        lost = b.subtract(b.add(b.maximum(wide, 0.0), soft), b.multiply(wide, labels))
        return (b.multiply(b.reduce(lost, (0, 1)), 1 / wide.type.size),)

    def back(d: Value, inputs: Sequence[Value], _: Sequence[Value]) -> list[Value]:
        each = b.broadcast_to(b.multiply(d, 1 / wide.type.size), wide.shape)
        return [b.multiply(b.subtract(b.logistic(inputs[0]), labels), each)]

    return b.with_gradient(forward, [wide], back)[0]
