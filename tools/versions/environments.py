# SPDX-License-Identifier: Apache-2.0
"""An environment for each package, release and Python that is tried: what is installed there, and what is tried.

Installed are the versions of `constraints.txt` but for the package itself. PyTorch's wheels for CUDA link libraries
of CUDA, so that only `triton` and CUDA's bindings for Python can be left away.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.versions import cases

_INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
_CORE = ("numpy", "ml_dtypes", "numba")
_TOOLS = ("pytest", "hypothesis", "expecttest")
_LEFT_AWAY = re.compile(r"extra ==|^triton|^cuda-bindings")
_WANTS = "import importlib.metadata as m; print('\\n'.join(m.requires('torch')))"


def _files(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/frontends/{name}.py" for name in names)


@dataclass(frozen=True)
class Package:
    """What is tried of each release of a package. packages: installed beside it; free: not held to the lock."""

    title: str
    cases: tuple[str, ...]
    packages: tuple[str, ...] = ()
    free: tuple[str, ...] = ()


PACKAGES = {
    "core": Package(
        "no framework",
        (
            "tests/nki/test_nki_jit.py",
            "tests/kernels/test_matmul.py",
            "tests/fleet/test_fleet_plans.py",
        ),
    ),
    "torch": Package(
        "PyTorch",
        (
            *cases.CASES,
            *_files("test_pytorch_names", "test_autoload", "test_device", "test_data_attribute", "test_backend"),
            *_files("test_recording", "test_random_numbers", "distributed/test_fully_sharded_steps"),
        ),
    ),
    "jax": Package(
        "JAX",
        _files("test_jax", "test_unedited_jax"),
        packages=("flatbuffers", "flax", "optax", "equinox"),
        free=("jax", "jaxlib", "flax"),
    ),
    "tensorflow-cpu": Package(
        "TensorFlow",
        _files("test_tensorflow", "test_unedited_tensorflow"),
        packages=("jax",),
        free=("tensorflow_cpu", "keras", "protobuf"),
    ),
}


@dataclass(frozen=True)
class Environment:
    """A release of a package ("" where none is needed) for a Python, in a folder."""

    package: str
    release: str
    executable: str
    folder: Path

    @property
    def title(self) -> str:
        """For people."""
        return f"{PACKAGES[self.package].title} {self.release}".strip()

    @property
    def version(self) -> str:
        """Of its Python, as 3.11; "" where that does not run."""
        return version_of(self.executable)

    @property
    def path(self) -> Path:
        """Where it is, or will be."""
        return self.folder / f"python{self.version}-{self.package}-{self.release}".rstrip("-")

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.path / "bin" / "python")

    def make(self) -> None:
        """Make it, unless it was made to its end since the lock last changed."""
        ready, lock = self.path / ".ready", cases.ROOT / "constraints.txt"
        if ready.exists() and ready.stat().st_mtime > lock.stat().st_mtime:
            return
        if not Path(self.python).exists():
            subprocess.run([self.executable, "-m", "venv", "--without-pip", self.path], check=True)
        self._install_all()
        ready.touch()

    def _install_all(self) -> None:
        package, version = PACKAGES[self.package], f"{self.package}=={self.release}"
        if self.package == "torch":
            self._install("--retries", "1", "--no-deps", "--extra-index-url", _INDEX, version)
            wants = subprocess.run([self.python, "-c", _WANTS], capture_output=True, text=True, check=True).stdout
            self._install(*(line for line in wants.splitlines() if not _LEFT_AWAY.search(line)), *_TOOLS, *_CORE)
        else:
            own = () if self.package == "core" else (version,)
            own += (f"jaxlib=={self.release}",) if self.package == "jax" else ()
            self._install(*own, *package.packages, *_TOOLS, *_CORE)
        self._install("--no-deps", "-e", str(cases.ROOT))

    def _install(self, *what: str) -> None:
        """By the pip of this Python, for the other; held to the lock but for the package itself."""
        free = (self.package, *PACKAGES[self.package].free)
        lock = (cases.ROOT / "constraints.txt").read_text().splitlines()
        kept = self.path / "constraints.txt"
        kept.write_text("\n".join(line for line in lock if line.partition("==")[0] not in free))
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--disable-pip-version-check"]
        pip.append("--no-compile")  # much of it is never imported
        subprocess.run([*pip, "-c", str(kept), *what], check=True)


def version_of(executable: str) -> str:
    """Of a Python, as 3.11; "" where it does not run (a shim of pyenv is there for what was not chosen, too)."""
    wanted = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        found = subprocess.run([executable, "-c", wanted], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return "" if found.returncode else found.stdout.strip()
