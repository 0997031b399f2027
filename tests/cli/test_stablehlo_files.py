# SPDX-License-Identifier: Apache-2.0
"""`trnlab run` with modules of StableHLO, and graphs that are written as such."""

from __future__ import annotations

import json

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from trnlab.cli.main import main  # noqa: E402


def function(p, x):
    return jax.nn.softmax(x @ p), (x > 0).sum()


P, X = (np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(((16, 8), (4, 16))))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRNLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRNLAB_TARGET", "trn1.2xlarge")
    monkeypatch.setenv("TRNLAB_PRECISION", "fp32")
    (tmp_path / "m.mlir").write_text(jax.jit(function).lower(P, X).as_text())
    np.savez(tmp_path / "in.npz", arg1=X, arg0=P)
    return tmp_path


def outputs(folder, run="m-1"):
    with np.load(folder / "runs" / run / "outputs.npz") as file:
        return file["out0"], file["out1"]


def test_a_module_runs_on_given_inputs_and_comes_out_again(folder, capsys):
    assert main(["run", "--inputs", "in.npz", "--emit-stablehlo", "m.mlir"]) == 0
    shown = capsys.readouterr().out
    assert "out0  tensor<4x8xfloat32>" in shown
    assert "whole run" in shown
    assert json.loads((folder / "runs" / "m-1" / "summary.json").read_text())["complete"]
    wanted = jax.jit(function)(P, X)
    for ours, theirs in zip(outputs(folder), wanted):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    (written,) = (folder / "runs" / "m-1" / "stablehlo").iterdir()
    assert main(["run", "--inputs", "in.npz", "--out", "runs/again", str(written)]) == 0
    np.testing.assert_array_equal(outputs(folder)[0], outputs(folder, "again")[0])


def test_bytecode_and_exports_run_on_random_inputs(folder, capsys):
    exported = jax.export.export(jax.jit(function))(P, X)
    (folder / "m.mlirbc").write_bytes(exported.mlir_module_serialized)
    assert main(["run", "m.mlirbc"]) == 0
    assert "random numbers (seed 0)" in capsys.readouterr().err
    first, _ = outputs(folder)
    assert main(["run", "--seed", "1", "m.mlirbc"]) == 0
    assert (first != outputs(folder, "m-2")[0]).any()
    pytest.importorskip("flatbuffers")
    (folder / "m.exported").write_bytes(exported.serialize())
    assert main(["run", "m.exported"]) == 0
    np.testing.assert_array_equal(first, outputs(folder, "m-3")[0])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"arg0": P, "arg1": X.T}, "arg1 of the module does not fit"),
        ({"arg0": P}, "not as many arrays"),
        ({"arg0": P, "arg1": X > 0}, "arg1 of the module does not fit"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(folder, capsys, inputs, message):
    np.savez(folder / "wrong.npz", **inputs)
    assert main(["run", "--inputs", "wrong.npz", "m.mlir"]) == 2
    error = capsys.readouterr().err
    assert "TRN236" in error
    assert message in error


def test_what_is_no_module_is_refused(folder, capsys):
    (folder / "bad.mlir").write_text("hello")
    (folder / "bad.bin").write_bytes(b"\0\xff" * 99)
    (folder / "train.py").write_text("pass")
    for arguments, code in (
        (["bad.mlir"], "TRN230"),
        (["bad.bin"], "TRN230"),
        (["none.mlir"], "TRN123"),
        (["--inputs", "in.npz", "train.py"], "TRN236"),
    ):
        assert main(["run", *arguments]) == 2
        assert code in capsys.readouterr().err


def test_a_script_of_jax_has_steps_losses_and_graphs(folder, capsys):
    (folder / "train.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "import trnlab.frontends.jax as neuron\n"
        "@neuron.jit(donate_argnums=0)\n"
        "def step(w, x):\n"
        "    loss, g = jax.value_and_grad(lambda w: ((x @ w - 1) ** 2).mean())(w)\n"
        "    return w - 0.1 * g, loss\n"
        "w = jnp.zeros((8, 3))\n"
        "for _ in range(3):\n"
        "    w, loss = step(w, jnp.ones((5, 8)))\n"
    )
    assert main(["run", "--emit-stablehlo", "train.py"]) == 0
    summary = json.loads((folder / "runs" / "train-1" / "summary.json").read_text())
    assert len(summary["loss"]) == summary["steps"] == 3
    assert summary["loss"][2] < summary["loss"][0]
    (written,) = (folder / "runs" / "train-1" / "stablehlo").iterdir()
    assert "tf.aliasing_output" in written.read_text()
