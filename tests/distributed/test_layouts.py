# SPDX-License-Identifier: Apache-2.0
"""Context parallel attention, experts, pipelines of several kinds, and two layouts at once, on 4 ranks and pairs.

All of them learn in three steps of AdamW what one process learns from the whole batch (`scripts/steps.py`).
"""

import pytest

from tests.distributed.ranks import launch
from tests.distributed.test_process_group import passed

pytestmark = pytest.mark.torch
PARTS = {"context": 6, "expert": 3, "pipeline": 5}


@pytest.mark.parametrize(("ranks", "products"), [pytest.param(2, 1, marks=pytest.mark.slow), (4, 7)])
def test_layouts_learn_what_one_process_learns(tmp_path, ranks, products):
    parts = {**PARTS, "product": products}
    # What is eager runs on the host: twice the same step has the same bits, whichever floats a program has as inputs.
    for each in passed(launch("layouts_script.py", tmp_path, ranks, *parts, TRNLAB_EAGER="host")):
        assert each.output.count("passed") == sum(parts.values())
