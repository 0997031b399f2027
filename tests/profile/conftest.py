# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from profile_samples import really_run

from trnlab import profile


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that really ran, rendered."""
    folder = really_run(tmp_path_factory.mktemp("runs") / "train-1")
    profile.render(folder)
    return folder


@pytest.fixture(scope="session")
def ran(run_folder: Path) -> profile.Profile:
    """That run, read back."""
    return profile.load(run_folder)
