# SPDX-License-Identifier: Apache-2.0
"""Recommendation models with tables of embeddings (DLRM, arXiv:1906.00091), in the fields of TorchRec's dlrm_main.

Few tables have nearly all rows. Those are divided by rows among all ranks; the others, too short to be divided
evenly, are whole on each rank, as TensorFlow's ranking model keeps tables below its `size_threshold` beside the
network.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from trnlab.fleet.models.fields import Fields, wrong
from trnlab.fleet.models.unpartitioned import ID, Layers, Whole

SHORT = 8000  # rows of a table below which it is not divided (documented: `size_threshold` of TF's ranking model)
CRITEO = 4_195_197_692  # samples of Criteo's terabyte of clicks that are trained on in an epoch (MLPerf)
NUMBER = 4  # bytes of a number that comes from the host, and of a label


@dataclass(frozen=True)
class Recommender(Whole):
    """dense: numbers of a sample; rows: of each table; width: of a row; bottom, top: widths of both networks, from
    what goes in to what comes out."""

    dense: int = 0
    rows: tuple[int, ...] = ()
    width: int = 0
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
        return self.count - (sum(self.rows) - len(self.rows)) * self.width

    @property
    def everywhere(self) -> int:
        """Parameters that each rank has: both networks, and short tables."""
        return self.count - sum(self.divided) * self.width


def dlrm(f: Fields) -> Recommender:
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
    made = Layers()
    for sizes in (bottom, top):
        for into, out in pairwise(sizes):
            made.linear(into, out)
    made.given = float(bottom[0] * bottom[1])
    made.products += float(vectors * vectors * width)
    return Recommender(
        f.name,
        0,
        (),
        1,
        patch=1,
        source=f.source,
        count=made.parameters + sum(rows) * width,
        per_unit=made.operations,
        items="samples",
        kind="tables",
        optimizer="SGD",
        brought=NUMBER * dense + ID * len(rows) + NUMBER,
        epoch=f.count("epoch", 0, least=0),
        dense=dense,
        rows=rows,
        width=width,
        bottom=bottom,
        top=top,
    )
