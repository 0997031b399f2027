# SPDX-License-Identifier: Apache-2.0
"""Kernels with one mistake each, and the whole message that each must get, at the line marked `# wrong`.

The kernels are in `wrong_kernels/`, the messages in its `messages.txt`. After changing a message on purpose:

    python tests/nki/test_nki_wrong_kernels.py

writes that file anew, to be read before it is committed.
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest

from trnlab.checks import CHECKS, checks
from trnlab.chips import catalog
from trnlab.errors import TrnlabError
from trnlab.nki.lint import lint_file

FOLDER = Path(__file__).parent / "wrong_kernels"
MESSAGES = FOLDER / "messages.txt"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def message(name: str) -> str:
    """What running, or reading, the kernel says."""
    module = load(name)
    path = FOLDER / f"{name}.py"
    chip = catalog.get(getattr(module, "CHIP", "trn2"))
    if getattr(module, "LINT", False):
        found, _ = lint_file(path, chip, chosen=True)
        text = "\n".join(str(finding) for finding in found)
    else:
        text = run(module, chip)
    return text.replace(f"{FOLDER}/", "").strip()


def run(module: Any, chip: Any) -> str:
    """The error of a kernel; checks that only warn count as errors."""
    kernel = module.kernel
    kernel.chip = chip
    launch = getattr(module, "LAUNCH", 0)
    strict = {name.replace("-", "_"): "error" for name in CHECKS}
    with checks(**strict), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            (kernel[launch] if launch else kernel)(*module.ARGUMENTS)
        except TrnlabError as error:
            return str(error)
    return "nothing is wrong"


def load(name: str) -> Any:
    """The module of a wrong kernel."""
    spec = importlib.util.spec_from_file_location(f"wrong_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def messages() -> dict[str, str]:
    """The message of each kernel as it is written down."""
    parts = MESSAGES.read_text().split("== ")[1:] if MESSAGES.exists() else []
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip() for part in parts}


def marked(name: str) -> int | None:
    """The line that is marked as wrong."""
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.endswith("# wrong")), None)


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_gets_its_message(name: str) -> None:
    said = message(name)
    assert said == messages()[name]
    line = marked(name)
    if line is not None:
        assert f"{name}.py:{line}" in said


def test_there_are_at_least_forty() -> None:
    assert len(NAMES) >= 40
    assert set(messages()) == set(NAMES)


if __name__ == "__main__":
    MESSAGES.write_text("\n".join(f"== {name}\n{message(name)}\n" for name in NAMES))
