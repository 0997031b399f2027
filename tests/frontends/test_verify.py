# SPDX-License-Identifier: Apache-2.0
"""`trnlab verify`: clean models have no difference beyond rounding, and each injected fault is found at its line."""

from __future__ import annotations

import json
import math

import pytest
import torch
import verify_scripts as scripts

from trnlab import chips, documents
from trnlab.cli.main import main
from trnlab.compiler import passes
from trnlab.errors import UsageError
from trnlab.frontends.torch import step as step_module
from trnlab.frontends.torch.lowerings import LOWERINGS
from trnlab.frontends.torch.lowerings.registry import operator
from trnlab.frontends.torch.verify.captured import NOT_CAPTURED
from trnlab.frontends.torch.verify.script import VerifyRequest, verify
from trnlab.graph.passes.rewrite import rewrite
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session
from trnlab.verify import conditions
from trnlab.verify.document import document
from trnlab.verify.result import DIFFERS, to_json

pytestmark = pytest.mark.torch


def text(verdict):
    return documents.text(document(verdict))


def verdict_of(path, *, precision="fp32", steps=1, runs=4, **more):
    session = Session(chips.target("trn1.2xlarge"), precision)
    return verify(VerifyRequest(Script(path), steps, runs=runs, **more), session)


def found(tmp_path, name, marked, precision="fp32"):
    """The first divergence of a script, which must be at the marked line."""
    path = scripts.write(tmp_path, name, getattr(scripts, name))
    verdict = verdict_of(path, precision=precision)
    assert verdict.first is not None, text(verdict)
    assert verdict.first.place.line == scripts.line(path, marked), text(verdict)
    return verdict


@pytest.mark.parametrize("name", ["GPT", "BERT", "COMPILED"])
def test_a_clean_model_has_no_difference_beyond_rounding(tmp_path, name):
    verdict = verdict_of(scripts.write(tmp_path, name, getattr(scripts, name)), steps=2)
    assert verdict.clean, text(verdict)
    assert text(verdict).endswith("no difference beyond rounding in 2 steps")
    assert verdict.same_program
    assert verdict.compared > 300
    assert len(verdict.curves.chip) == len(verdict.curves.reference) == 2
    assert all(r.ratio <= 1 for r in verdict.results)
    gradients = [r for r in verdict.results if r.gradient]
    assert gradients
    assert any(r.place.layer == "model.blocks.0.ln1" for r in gradients)


def test_an_overflow_of_float16_is_found_where_it_happens(tmp_path):
    first = found(tmp_path, "OVERFLOW", "# overflows").first
    assert (first.condition, first.format, first.place.layer) == (conditions.OVERFLOW, "float16", "model")
    assert math.isinf(first.chip)
    assert 65504 < abs(first.reference) < math.inf


def test_catastrophic_cancellation_is_found_where_errors_grow_and_not_where_they_arrive(tmp_path):
    first = found(tmp_path, "CANCELLATION", "# cancels").first
    assert (first.op, first.condition) == ("aten.sub.Tensor", conditions.CANCELLATION)
    assert first.ratio <= 1  # the subtraction itself is right


def test_a_lowering_that_loses_small_numbers_is_found(tmp_path, monkeypatch):
    """log1p as log(1 + x): what is right in exact arithmetic, and wrong for small x in fp32."""
    naive = lambda site, x: site.cast(site.b.log(site.b.add(site.wide(x), 1.0)))  # noqa: E731
    monkeypatch.setitem(LOWERINGS, operator("log1p.default"), naive)
    first = found(tmp_path, "SMALL", "# small").first
    assert (first.op, first.condition) == ("aten.log1p", conditions.INSIDE)


def test_a_compiler_that_rounds_a_reduction_to_bfloat16_is_found(tmp_path, monkeypatch):
    def narrowed(op, b):
        if op.operands[0].dtype is not float32 or op.origin.startswith("trn"):
            return None
        total = b.reduce(op.operands[0], op.attrs["dimensions"], op.attrs["kind"])
        return b.convert(b.convert(total, bfloat16), float32)

    broken = ("broken", lambda graph, options: rewrite(graph, {"reduce": narrowed}))
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES[:4], broken, *passes.PASSES[4:]))
    verdict = found(tmp_path, "SUM", "# sums")
    assert (verdict.first.op, verdict.first.condition) == ("aten.sum.dim_IntList", conditions.NARROW)
    assert verdict.first.why.startswith(("7 bits", "8 bits", "9 bits"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_the_compiler_makes_one_op_of_is_no_difference(tmp_path, precision):
    """A rotation, the way back through a norm, and sums of products are not computed of what the operators read."""
    verdict = verdict_of(scripts.write(tmp_path, "LLAMA", scripts.LLAMA), precision=precision, steps=2)
    assert verdict.clean, text(verdict)
    assert verdict.compared > 200


def test_a_wrong_rotation_is_found(tmp_path, monkeypatch):
    def turned_back(op, b):
        return b.negate(b.op("trn.rotate_half", *op.operands, pairs=op.attrs["pairs"]))

    broken = ("broken", lambda graph, options: rewrite(graph, {"trn.rotate_half": turned_back}))
    names = [name for name, _ in passes.PASSES]
    at = names.index("legalize")
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES[:at], broken, *passes.PASSES[at:]))
    verdict = found(tmp_path, "LLAMA", "# turns", precision="bf16")
    assert (verdict.first.op, verdict.first.condition) == ("aten.cat", conditions.WRONG)


def test_what_the_pe_array_rounds_is_no_difference_and_what_else_is_rounded_would_be(tmp_path):
    verdict = verdict_of(scripts.write(tmp_path, "sums", scripts.SUM), precision="bf16")
    assert verdict.clean, text(verdict)
    products = [r for r in verdict.results if r.kind == "product"]
    assert products
    assert max(r.error for r in products) > 2**-12  # against the exact run; their own error is small all the same


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_script_that_nobody_edited_is_compared_with_its_convolutions(tmp_path, precision):
    verdict = verdict_of(scripts.write(tmp_path, "unedited", scripts.UNEDITED), precision=precision, steps=2)
    assert verdict.clean, text(verdict)
    products = [r.op for r in verdict.results if r.kind == "product"]
    assert {"aten.convolution", "aten.convolution_backward"} <= set(products)


def test_a_kernel_inside_of_a_model_is_one_op(tmp_path):
    path = scripts.write(tmp_path, "kernel", scripts.KERNEL)
    verdict = verdict_of(path)
    assert verdict.clean, text(verdict)
    kernels = [r for r in verdict.results if r.op == "trnlab.nki"]
    assert [(r.shape, r.ratio) for r in kernels] == [((8, 32), 0.0)]


def test_a_step_that_is_captured_wrongly_is_found_though_no_op_is_wrong(tmp_path, monkeypatch):
    """The function that the capture sees is not the one that the script calls."""
    original, tanh = step_module.capture_step, torch.nn.functional.tanh

    def captured(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(torch.nn.functional, "tanh", lambda x: torch.sigmoid(x))
            return original(*args, **kwargs)

    monkeypatch.setattr(step_module, "capture_step", captured)
    assert torch.nn.functional.tanh is tanh
    path = scripts.write(tmp_path, "activation", scripts.ACTIVATION)
    verdict = verdict_of(path)
    assert not verdict.differing
    assert verdict.first.condition == NOT_CAPTURED
    assert (verdict.first.place.line, verdict.first.place.layer) == (scripts.line(path, "# tanh"), "model")
    assert "not what was captured" in text(verdict)


# -- two scripts ----------------------------------------------------------------------------------------------------


def against(tmp_path, **fault):
    original = scripts.write(tmp_path, "original", scripts.NORM.format(eps=1e-5, axis=-1))
    port = scripts.write(tmp_path, "port", scripts.NORM.format(**{"eps": 1e-5, "axis": -1, **fault}))
    return port, original, verdict_of(port, other=Script(original))


def test_two_equal_scripts_do_not_differ(tmp_path):
    _, _, verdict = against(tmp_path)
    assert verdict.clean, text(verdict)
    assert verdict.compared > 5


def test_a_wrong_epsilon_is_named_with_both_values(tmp_path):
    port, original, verdict = against(tmp_path, eps=1e-6)
    first = verdict.first
    assert (first.op, first.place.layer) == ("F.layer_norm", "model.1.norm")
    assert first.place.line == first.other.line == scripts.line(port, "# norm")
    assert (first.place.file, first.other.file) == (str(port), str(original))
    assert "eps=1e-06" in first.why
    assert "eps=1e-05" in first.why


def test_a_swapped_axis_is_named_at_its_line(tmp_path):
    port, _, verdict = against(tmp_path, axis=-2)
    first = verdict.first
    assert (first.op, first.place.layer) == ("torch.softmax", "model.1")
    assert first.place.line == scripts.line(port, "# weights")
    assert "dim=-2" in first.why


# -- what it leaves, and what it refuses ----------------------------------------------------------------------------


def test_the_command_says_it_on_the_terminal_in_json_and_on_a_page(tmp_path, capsys):
    path = scripts.write(tmp_path, "net", scripts.OVERFLOW)
    out, record = tmp_path / "run", tmp_path / "verdict.json"
    options = ["--target", "trn1.2xlarge", "--no-cache", "--steps", "1", "--out", str(out), "--json", str(record)]
    assert main(["verify", *options, str(path)]) == 1
    shown = capsys.readouterr().out
    assert f"first divergence: aten.mul.Tensor at net.py:{scripts.line(path, '# overflows')}, overflow" in shown
    kept = json.loads(record.read_text())
    assert kept == json.loads((out / "verify.json").read_text())
    assert (kept["schema"], kept["clean"], kept["first"]["condition"]) == ("trnlab-verify", False, "overflow")
    assert kept["first"]["chip"] in ("inf", "-inf")
    assert len(kept["loss"]["band"]) == kept["steps"] == 1
    page = (out / "verify.html").read_text()
    assert "overflow" in page
    assert "# overflows" in page


def test_json_has_every_field_of_the_documentation(tmp_path):
    verdict = verdict_of(scripts.write(tmp_path, "net", scripts.SUM))
    record = to_json(verdict)
    document = (scripts.Path(__file__).parents[2] / "docs" / "verify.md").read_text()
    for field in record:
        assert f"`{field}`" in document, field
    assert all(r.status != DIFFERS for r in verdict.results)
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("TRN160", "print('no step')"),
        ("TRN161", "raise ValueError('as it happens')"),
        ("TRN161", "raise SystemExit(3)"),
        ("TRN162", "x = torch.ones(3, requires_grad=True); x.sum().backward()"),
    ],
)
def test_a_script_that_cannot_be_verified_says_why(tmp_path, code, body):
    path = scripts.write(tmp_path, "bad", body + "\n")
    with pytest.raises(UsageError) as caught:
        verdict_of(path)
    assert caught.value.code == code
    if "ValueError" in body:
        assert caught.value.where.line == scripts.line(path, "raise ValueError")


def test_no_steps_are_refused(tmp_path, capsys):
    path = scripts.write(tmp_path, "net", scripts.SUM)
    assert main(["verify", "--target", "trn1", "--steps", "0", str(path)]) == 2
    assert "TRN569" in capsys.readouterr().err
