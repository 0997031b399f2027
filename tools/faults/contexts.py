# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: coverage learns which file of tests reached a line, in processes that tests start as well; of long
tests, which test.

    python -m pytest -p tools.faults.contexts ...

with `context = ${TRNLAB_TEST_FILE-none}` in coverage's configuration for the processes. TRNLAB_TEST_SECONDS names
what `pytest --durations=0` printed earlier; without it no test counts as long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import coverage
import pytest

from tools.faults.choice import LONG_S, seconds_of

VARIABLE = "TRNLAB_TEST_FILE"
SECONDS = "TRNLAB_TEST_SECONDS"
COSTS = "TRNLAB_TEST_COSTS"  # names a file for lines of processor seconds and test


@cache
def _long() -> frozenset[str]:
    if SECONDS not in os.environ:
        return frozenset()
    found = seconds_of(Path(os.environ[SECONDS]))
    return frozenset(test for test, spent in found.items() if spent >= LONG_S)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name the file of the test, or the test, before anything of it runs."""
    name = item.nodeid if item.nodeid in _long() else item.nodeid.split("::")[0]
    os.environ[VARIABLE] = name
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(name)
    before = sum(os.times()[:4])
    yield
    if COSTS in os.environ:
        with open(os.environ[COSTS], "a") as costs:
            costs.write(f"{sum(os.times()[:4]) - before:.3f} {item.nodeid}\n")
