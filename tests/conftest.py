# SPDX-License-Identifier: Apache-2.0
"""For every test: PyTorch computes on one thread. Several processes test at once, and its threads would wait for
cores that the others use."""

import gc
import os
from pathlib import Path

import pytest

LEFT = Path(__file__).with_name("left_to_test_all.txt")

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config):
    from tests import extent

    extent.ALL = "not slow" not in config.option.markexpr


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Long tests that the list names count as slow, which `make test` leaves out (docs/adr/0108)."""
    if "not slow" not in config.option.markexpr:
        return
    rows = [line.split(maxsplit=1) for line in LEFT.read_text().splitlines() if not line.startswith("#")]
    left = {name for _, name in rows}
    for item in items:
        if item.nodeid in left:
            item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """Collections of garbage need not go through the modules and tests that are loaded now, which stay. Without this
    they take one second of sixteen in the front ends' tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure():
    from tests import processes

    processes.end()
