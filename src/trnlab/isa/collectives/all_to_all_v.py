# SPDX-License-Identifier: Apache-2.0
"""Every rank sends every rank a piece of its own length."""

from __future__ import annotations

from trnlab.isa import register
from trnlab.isa.collectives.collective import SAME_GROUPS
from trnlab.isa.collectives.variable import LAYOUT, Variable


@register
class AllToAllV(Variable):
    """dst = the pieces of src that the ranks send to this one.

    Rows 0 and 1 of each sender's metadata, in the column of this rank, say how many elements and from where on.

    Which ranks may exchange this way (those of different instances, or whole devices behind a switch) is not checked.
    """

    name = "all_to_all_v"
    opcode = 67
    cost_kinds = ("collective.all_to_all_v",)
    limits = (SAME_GROUPS, "dst and src lie in HBM", LAYOUT)
    source = "nki.collectives.all_to_all_v"
    example = """
        x = nl.ndarray((32,), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((32,), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=x.reshape((1, 32)), src=nl.ones((1, 32), nl.float32))
        counts = nl.ones((1, 6), nl.uint32)  # for each rank: how many elements, from where on, and how many came
        ncc.all_to_all_v([x], [y], ncc.ReplicaGroup([[0, 1]]), counts)
    """
    example_on = (1, 2)
