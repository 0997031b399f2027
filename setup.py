# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say.

A wheel that holds compiled loops is for one platform, and for every Python. A file lies beside the package.
"""

import sysconfig
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

COMPILED = Path(__file__).parent / "src" / "trnlab" / "loops" / "made"


class Wheel(bdist_wheel):
    """With objects that belong to a system and a processor, or without: then it is for all."""

    def get_tag(self) -> tuple[str, str, str]:
        """The objects use nothing of Python's."""
        if not any(COMPILED.glob("*.loops")):
            return "py3", "none", "any"
        return "py3", "none", sysconfig.get_platform().replace("-", "_").replace(".", "_")


class Beside(Command):
    """trnlab.pth among the packages, in a wheel as in an editable one: Python would not read it in src."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []
    SOURCE = "src/trnlab.pth"

    def initialize_options(self) -> None:
        """What `build` knows."""
        self.build_lib = ""
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Where an editable wheel is put together, the installation says; others are made of what was built."""
        asked = ("install", "install_lib") if self.editable_mode else ("build", "build_lib")
        self.build_lib = getattr(self.get_finalized_command(asked[0]), asked[1])

    def run(self) -> None:
        """Copy it."""
        self.mkpath(self.build_lib)
        self.copy_file(self.SOURCE, self.build_lib)

    def get_source_files(self) -> list[str]:
        """What a source distribution needs."""
        return [self.SOURCE]

    def get_outputs(self) -> list[str]:
        """What is made."""
        return [str(Path(self.build_lib, Path(self.SOURCE).name))]

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing that an editable installation could leave where it is."""
        return {}


class Build(build):
    """With what lies beside the package."""

    sub_commands = [*build.sub_commands, ("build_beside", None)]  # noqa: RUF012


setup(cmdclass={"bdist_wheel": Wheel, "build": Build, "build_beside": Beside})
