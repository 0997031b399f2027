# SPDX-License-Identifier: Apache-2.0
"""`two_recorders.py`, in a process of its own: copies of one that has JAX's threads are made nowhere."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_two_recorders():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "two_recorders.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stdout + done.stderr
