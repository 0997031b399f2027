# SPDX-License-Identifier: Apache-2.0
"""For every test: PyTorch computes on one thread. Several processes test at once, and its threads would wait for
cores that the others use."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config):
    from tests import extent

    extent.ALL = "not slow" not in config.option.markexpr


def pytest_unconfigure():
    from tests import processes

    processes.end()
