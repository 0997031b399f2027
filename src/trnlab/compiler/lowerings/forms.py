# SPDX-License-Identifier: Apache-2.0
"""How each kind of group may be recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trnlab.compiler.fusing.groups import FusionGroup, GroupKind
from trnlab.compiler.lowerings.along import lower_sum_along, lower_take_along
from trnlab.compiler.lowerings.attention import (
    fits_blocks,
    fits_fused,
    lower_attention,
    lower_attention_by_blocks,
    lower_attention_by_segments,
)
from trnlab.compiler.lowerings.collective import lower_collective
from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.convolution import lower_convolution
from trnlab.compiler.lowerings.dot import lower_dot
from trnlab.compiler.lowerings.grouped import lower_grouped_dot, lower_grouped_outer
from trnlab.compiler.lowerings.move import lower_move
from trnlab.compiler.lowerings.pool import lower_pool
from trnlab.compiler.lowerings.rows import lower_rows
from trnlab.compiler.lowerings.scatter import lower_scatter
from trnlab.compiler.lowerings.table_rows import lower_put_rows, lower_sum_rows

Applies = Callable[[FusionGroup, Mapping[str, str]], bool]  # a group, by the choices of a compilation

# The forms of each kind of group, the fastest first, and what a group must be like for a form.
LOWERINGS: dict[GroupKind, tuple[tuple[Callable[[Lowering], None], Applies], ...]] = {
    GroupKind.ROWS: ((lower_rows, lambda group, chosen: True),),
    GroupKind.DOT: ((lower_dot, lambda group, chosen: True),),
    GroupKind.ATTENTION: (
        (lower_attention, fits_fused),
        (lower_attention_by_segments, fits_fused),
        (lower_attention_by_blocks, fits_blocks),
    ),
    GroupKind.CONVOLUTION: ((lower_convolution, lambda group, chosen: True),),
    GroupKind.POOL: ((lower_pool, lambda group, chosen: True),),
    GroupKind.GATHER: ((lower_take_along, lambda group, chosen: True),),
    GroupKind.SCATTER: (
        (lower_sum_along, lambda group, chosen: group.anchor.name == "trn.sum_along"),
        (lower_sum_rows, lambda group, chosen: group.anchor.name == "trn.sum_rows"),
        (lower_put_rows, lambda group, chosen: group.anchor.name == "trn.put_rows"),
        (lower_scatter, lambda group, chosen: group.anchor.name == "scatter"),
    ),
    GroupKind.GROUPED: (
        (lower_grouped_dot, lambda group, chosen: group.anchor.name == "trn.grouped_dot"),
        (lower_grouped_outer, lambda group, chosen: group.anchor.name == "trn.grouped_outer"),
    ),
    GroupKind.MOVE: ((lower_move, lambda group, chosen: True),),
    GroupKind.COLLECTIVE: ((lower_collective, lambda group, chosen: True),),
}
