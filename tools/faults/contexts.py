# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: coverage learns which file of tests reached a line, in processes that tests start as well.

    python -m pytest -p tools.faults.contexts ...

with `context = ${TRNLAB_TEST_FILE-none}` in coverage's configuration for the processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import coverage
import pytest

VARIABLE = "TRNLAB_TEST_FILE"
COSTS = "TRNLAB_TEST_COSTS"  # names a file for lines of processor seconds and test


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name the file of the test before anything of it runs."""
    file = item.nodeid.split("::")[0]
    os.environ[VARIABLE] = file
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(file)
    before = sum(os.times()[:4])
    yield
    if COSTS in os.environ:
        with open(os.environ[COSTS], "a") as costs:
            costs.write(f"{sum(os.times()[:4]) - before:.3f} {item.nodeid}\n")
