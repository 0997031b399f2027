# SPDX-License-Identifier: Apache-2.0
"""`trnlab lint`: exit status, text, JSON, and files that it cannot read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trnlab.cli.main import main

CLEAN = """
import nki
import nki.isa as nisa
import nki.language as nl


def double(dst, src):
    nisa.tensor_scalar(dst=dst, data=src, op0=nl.multiply, operand0=2.0)


@nki.jit
def kernel(x, scale=None):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    banks = {"first": 0}
    for i in range(x.shape[0] // 128):
        tile = nl.load(x[i * 128 : (i + 1) * 128])
        if scale is not None:
            double(dst=tile, src=tile)
        assert tile.shape[0] <= nl.tile_size.pmax, f"{banks}"
        nl.store(out[i * 128 : (i + 1) * 128], tile)
    return out
"""


def lint(tmp_path: Path, text: str, *options: str) -> int:
    """The exit status for a file with this text."""
    file = tmp_path / "kernels.py"
    file.write_text(text)
    return main(["lint", *options, str(file)])


def test_a_clean_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, CLEAN, "--target", "trn2", "--strict") == 0
    assert capsys.readouterr().out == "1 kernel for trn2: 0 errors, 0 warnings\n"


def test_errors_fail_and_say_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also in a function that the kernel calls, and not in one that it does not."""
    text = CLEAN.replace("operand0=2.0)", "operand0=2.0, mask=None)")
    assert lint(tmp_path, text, "--target", "trn2") == 1
    out = capsys.readouterr().out
    assert f"{tmp_path}/kernels.py:8:79: error TRN911: tensor_scalar no longer takes mask=" in out
    assert lint(tmp_path, text.replace("            double(dst=tile, src=tile)", "            pass")) == 0


def test_warnings_fail_where_asked(tmp_path: Path) -> None:
    text = CLEAN.replace("in range(", "in nl.affine_range(")
    assert lint(tmp_path, text) == 0
    assert lint(tmp_path, text, "--strict") == 1


def test_generations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An instruction, an operator and a format that only later chips have."""
    for line, chips in (
        ("nisa.exponential(dst=tile, src=tile)", {"trn1", "trn2"}),
        (
            "nisa.range_select(dst=tile, on_true_tile=tile, comp_op0=nl.less, comp_op1=nl.less, bound0=tile, "
            "bound1=tile)",
            {"trn1"},
        ),
        ("nl.ndarray((128, 4), nl.float8_e4m3fn_x4)", {"trn1", "trn2"}),
    ):
        text = CLEAN.replace("nl.store(out[", f"{line}\n        nl.store(out[")
        for chip in ("trn1", "trn2", "trn3"):
            assert lint(tmp_path, text, "--target", chip) == int(chip in chips), (line, chip)
    capsys.readouterr()


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, CLEAN.replace("scale is not None", "scale is 2"), "--json", "--target", "trn3") == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["chip"], record["kernels"]) == ("trn3", 1)
    (finding,) = record["findings"]
    assert (finding["code"], finding["line"], finding["function"], finding["severity"]) == (
        "TRN901",
        17,
        "kernel",
        "error",
    )


def test_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, "def kernel(:\n") == 2
    assert main(["lint", str(tmp_path / "nothing.py")]) == 2
    assert lint(tmp_path, "x = 1\n") == 0
    captured = capsys.readouterr()
    assert "TRN128" in captured.err
    assert "TRN123" in captured.err
    assert "no function is decorated" in captured.out


def test_imports_under_other_names(tmp_path: Path) -> None:
    """What a name stands for is looked up, not guessed; both dialects may be in one file."""
    text = """
from neuronxcc.nki import jit as old_jit
import neuronxcc.nki.language as old
from nki import jit
from nki.language import affine_range as loop, arange


@jit
def new_kernel(x):
    return x[arange(4)]


@old_jit
def old_kernel(x):
    return old.load(x[old.arange(128)[:, None], old.arange(512)[None, :]])
"""
    assert lint(tmp_path, text) == 1
    assert lint(tmp_path, text.replace("x[arange(4)]", "x[0:4]"), "--strict") == 0


def test_a_file_in_another_encoding_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernel.py"
    file.write_bytes("name = 'é'\n".encode("latin-1"))
    assert main(["lint", str(file)]) == 2
    assert "TRN128" in capsys.readouterr().err
    file.write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    assert main(["lint", str(file)]) == 0


def test_warnings_that_say_the_same_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Deprecated names of a file are one line with their numbers; other warnings name the first place."""
    line = "        nisa.dma_copy(dst=tile, src=tile, dge_mode=0, engine=nisa.vector_engine)\n"
    text = CLEAN.replace("in range(", "in nl.affine_range(").replace(
        "        nl.store(", line + line + "        nl.store("
    )
    assert lint(tmp_path, text) == 0
    first, _, second, _, last = capsys.readouterr().out.splitlines()
    assert "TRN903: deprecated: nki.isa.vector_engine (2 times), nki.language.affine_range; use nisa.engine" in first
    assert "kernels.py:20:52: warning TRN913: a number for dge_mode= (2 times)" in second
    assert last.endswith("0 errors, 2 warnings")


def test_what_another_chip_has_is_an_error_only_where_a_chip_was_chosen(tmp_path: Path) -> None:
    """Files for several generations are legal; a format that is only compared with is none that is used."""
    text = CLEAN.replace("nl.store(out[", "nisa.exponential(dst=tile, src=tile)\n        nl.store(out[")
    assert lint(tmp_path, text) == 0
    assert lint(tmp_path, text, "--target", "trn2") == 1
    assert lint(tmp_path, text.replace("@nki.jit", "@nki.jit(platform_target='trn3')"), "--target", "trn2") == 0
    assert lint(tmp_path, text.replace("@nki.jit", "@nki.jit(platform_target='trn2')")) == 1
    compared = CLEAN.replace("assert tile", "assert x.dtype != nl.float4_e2m1fn_x4\n        assert tile")
    assert lint(tmp_path, compared, "--target", "trn2", "--strict") == 0


def test_arguments_of_earlier_releases_are_warnings(tmp_path: Path) -> None:
    """What runs here with a warning is no error: targets in the decorator, modes by number, annotations of old."""
    text = CLEAN.replace("def kernel(x, ", "def kernel(x: nt.mutable_tensor, ").replace(
        "import nki\n", "import nki\nimport neuronxcc.nki.typing as nt\n"
    )
    assert lint(tmp_path, text, "--strict") == 0
    assert lint(tmp_path, CLEAN.replace("@nki.jit", "@nki.jit(platform_target='trn2', mode='trace')")) == 0


def test_a_file_that_is_not_python_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ndef kernel(:\n")
    (tmp_path / "kernels.py").write_text(CLEAN)
    assert main(["lint", str(broken), str(tmp_path / "kernels.py")]) == 1
    out = capsys.readouterr().out
    assert f"{broken}:2:1: error TRN128: not Python" in out
    assert "1 kernel for" in out
