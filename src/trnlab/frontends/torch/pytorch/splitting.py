# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tables of operators written with other operators."""

from torch._decomp import (
    core_aten_decompositions,
    decomposition_table,
    get_decompositions,
    global_decomposition_table,
)

__all__ = ["core_aten_decompositions", "decomposition_table", "get_decompositions", "global_decomposition_table"]
