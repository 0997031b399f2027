# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: a wheel that holds compiled loops is for one platform, and for every Python."""

import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

COMPILED = Path(__file__).parent / "src" / "trnlab" / "loops" / "made"


class Wheel(bdist_wheel):
    """With objects that belong to a system and a processor, or without: then it is for all."""

    def get_tag(self) -> tuple[str, str, str]:
        """The objects use nothing of Python's."""
        if not any(COMPILED.glob("*.loops")):
            return "py3", "none", "any"
        return "py3", "none", sysconfig.get_platform().replace("-", "_").replace(".", "_")


setup(cmdclass={"bdist_wheel": Wheel})
