# SPDX-License-Identifier: Apache-2.0
"""A wheel, built as `pip wheel` builds it, in an environment with the core's dependencies and nothing else."""

import json
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from trnlab.loops import places, prebuilt

ROOT = Path(__file__).parents[2]
CORE = ("numpy", "ml_dtypes", "numba", "llvmlite")  # the last is numba's own
_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[2]}')(sys.argv[1])"

MODEL = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128}
KERNEL = """
import importlib.util
import sys
import warnings

assert importlib.util.find_spec("torch") is None
warnings.simplefilter("error")

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.cli.main import main
from trnlab.loops import prebuilt


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


x = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)
assert np.array_equal(doubled(x), 2 * x)
assert doubled.timeline(x).total > 0
made = prebuilt.made() is not None
WHERE = ["--target", "trn1.2xlarge", "--instances", "1..1", "--no-cache"]
assert main(["plan", "small.json", "--tokens", "1G", "--global-batch", "2", *WHERE]) == 0
print("loops", "compiled before" if made else "left to Numba", "numba" in sys.modules)
"""


def _built(folder: Path, made: Iterable[tuple[str, bytes]], what: str = "wheel") -> Path:
    """The wheel of a copy of the sources, with these compiled loops; `editable` is the other kind."""
    copy = folder / "sources"
    copytree(ROOT / "src" / "trnlab", copy / "src" / "trnlab", ignore=ignore_patterns("__pycache__", "made"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    (copy / "src" / "trnlab.pth").write_bytes((ROOT / "src" / "trnlab.pth").read_bytes())
    for name, content in made:
        path = copy / "src" / "trnlab" / "loops" / "made" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    subprocess.run([sys.executable, "-c", _BUILD, str(folder), what], cwd=copy, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _installed(wheel: Path, folder: Path) -> Path:
    """The Python of an environment with the wheel and the core's dependencies."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    for name in CORE:
        spec = find_spec(name)
        assert spec is not None
        package = Path(str(spec.origin)).parent
        about = Path(str(distribution(name)._path))  # type: ignore[attr-defined]
        found = {package, package.with_name(f"{name}.libs"), about}
        for path in filter(Path.exists, found):
            (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


def _names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("trnlab")}


def test_a_wheel_without_compiled_loops_is_for_all_and_has_every_file(tmp_path: Path) -> None:
    wheel = _built(tmp_path, [])
    assert wheel.name.endswith("-py3-none-any.whl")
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no clone of the repository, which knows the files that there should be")
    present = {name for name in listed.stdout.split() if (ROOT / name).exists()}
    assert _names(wheel) >= {name.removeprefix("src/") for name in present}


STARTS = """
import os, sys
chosen = "TRNLAB_TARGET" in os.environ
assert ("trnlab.frontends.early" in sys.modules) is chosen, sys.modules
if chosen:
    import nki
    assert nki.__name__ == "trnlab.nki"
"""


def test_a_start_with_a_target_finds_the_vendors_packages_where_trnlab_is_installed(tmp_path: Path) -> None:
    """Without `trnlab run` and without PyTorch; the file that does so is in both kinds of wheel."""
    wheel = _built(tmp_path / "editable", [], "editable")
    assert zipfile.ZipFile(wheel).read("trnlab.pth") == (ROOT / "src" / "trnlab.pth").read_bytes()
    python = _installed(_built(tmp_path / "wheel", []), tmp_path / "environment")
    for chosen in ({}, {"TRNLAB_TARGET": "trn2"}):
        environment = {"HOME": str(tmp_path), **chosen}
        ran = subprocess.run([python, "-c", STARTS], env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr


def test_a_kernel_and_a_plan_run_from_a_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    compiled = places.INSTALLED / places.file_name()
    made = [(compiled.name, compiled.read_bytes())] if prebuilt.read(compiled) is not None else []
    wheel = _built(tmp_path, made)
    assert ("-py3-none-any" in wheel.name) == (not made)
    python = _installed(wheel, tmp_path / "environment")
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL)
    (tmp_path / "small.json").write_text(json.dumps(MODEL))
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}
    ran = subprocess.run([python, script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "layouts were looked at" in ran.stdout
    assert f"loops {'compiled before False' if made else 'left to Numba True'}" in ran.stdout
