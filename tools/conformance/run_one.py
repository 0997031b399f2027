# SPDX-License-Identifier: Apache-2.0
"""Run one file of somebody else's with the imports of kernels resolved to trnlab; see `__main__.py`."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import numpy as np

import trnlab.nki

sys.path.insert(0, str(Path(__file__).parent))

import cases
import stand_ins


def main() -> int:
    """script FILE ROOT [ARGUMENT...] | tests FILE ROOT REPORT | case FILE ROOT NAME."""
    mode, file, root, *rest = sys.argv[1:]
    trnlab.nki.install_imports(override=True)
    stand_ins.install(Path(root))
    warnings.simplefilter("ignore")
    np.random.seed(0)
    for folder in (Path(file).parent, Path(root) / "src", Path(root)):
        sys.path.insert(0, str(folder))
    if mode == "script":
        sys.argv = [file, *rest]
        runpy.run_path(file, run_name="__main__")
        return 0
    if mode == "tests":
        import pytest

        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={rest[0]}", f"--rootdir={root}", "-c", "/dev/null"]
        if "unittest" in Path(file).read_text(encoding="utf-8"):
            options += ["-o", "python_functions=nothing"]  # kernels there may be called test_...
        if "simulation_only" in Path(file).read_text(encoding="utf-8"):
            options.append("--simulation-only")
        return int(pytest.main([*options, file]))
    return cases.run(rest[0], runpy.run_path(file, run_name="kernels"))


if __name__ == "__main__":
    raise SystemExit(main())
