# SPDX-License-Identifier: Apache-2.0
"""What each op of StableHLO and CHLO is in terms of the graph's; importing this package fills the table."""

from trnlab.frontends.stablehlo.lowerings import (
    calls as calls,
)
from trnlab.frontends.stablehlo.lowerings import (
    collectives as collectives,
)
from trnlab.frontends.stablehlo.lowerings import (
    control as control,
)
from trnlab.frontends.stablehlo.lowerings import (
    elementwise as elementwise,
)
from trnlab.frontends.stablehlo.lowerings import (
    index as index,
)
from trnlab.frontends.stablehlo.lowerings import (
    products as products,
)
from trnlab.frontends.stablehlo.lowerings import (
    random as random,
)
from trnlab.frontends.stablehlo.lowerings import (
    reduce as reduce,
)
from trnlab.frontends.stablehlo.lowerings import (
    scatter as scatter,
)
from trnlab.frontends.stablehlo.lowerings import (
    shape as shape,
)
from trnlab.frontends.stablehlo.lowerings import (
    sorting as sorting,
)
from trnlab.frontends.stablehlo.lowerings import (
    windows as windows,
)
