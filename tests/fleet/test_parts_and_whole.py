# SPDX-License-Identifier: Apache-2.0
"""The best layout of a plan takes as long, and as much memory, as `trnlab estimate` finds for the script that
trains so: it is compiled as one program, of the model as the planner defines it. `python
tests/fleet/test_parts_and_whole.py [fp32]` prints all eight layouts; the suite holds two."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

import pytest

from trnlab.cli.main import main
from trnlab.fleet import Question, plan
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.search.layout import pinned

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = """
import sys
sys.path.insert(0, {examples!r})
import train_llama as llama
llama.MODELS["small"] = llama.Config({hidden}, {layers}, {heads}, {shared}, {mlp}, {words}, {length})
if {again!r} == "none":
    llama.Block.forward = llama.Block._forward  # keeps its activations
if {precision!r} == "fp32":  # weights are gathered as they are
    policy = llama.MixedPrecisionPolicy
    llama.MixedPrecisionPolicy = lambda **formats: policy()
sys.argv += ["--model", "small", "--steps", "1"]
llama.main()
"""
MODELS = {
    "narrow": {"hidden": 512, "layers": 4, "heads": 4, "shared": 2, "mlp": 1408, "words": 2048, "length": 512},
    "wide": {"hidden": 1024, "layers": 2, "heads": 8, "shared": 8, "mlp": 2816, "words": 4096, "length": 512},
}


def _whole(folder, sizes, target, ranks, precision, again):
    """Seconds of the script's step, and bytes of a rank."""
    script, said = folder / "train.py", io.StringIO()
    script.write_text(SCRIPT.format(examples=str(EXAMPLES), precision=precision, again=again, **sizes))
    sys.modules.pop("train_llama", None)  # the script changes it
    asked = [
        "estimate",
        "--stack",
        "ours",
        "--json",
        "--no-cache",
        "--target",
        target,
        "--ranks",
        str(ranks),
        "--precision",
        precision,
        str(script),
    ]
    with contextlib.redirect_stdout(said):
        assert main(asked) == 0
    found = json.loads(said.getvalue())["targets"][0]
    return found["step_s"], found["memory"]["total"]


def _parts(sizes, target, instances, ranks, precision, again):
    """The step of the same layout from its stages: weights, gradients and state divided among all ranks."""
    size = sizes["hidden"] // sizes["heads"]
    block = Block(sizes["hidden"], Attention(sizes["heads"], sizes["shared"], size, size), Dense(sizes["mlp"]))
    model = Model("small", sizes["hidden"], ((sizes["layers"], block),), sizes["length"], sizes["words"])
    fixed = pinned(f"tp=1,pp=1,mb=1,zero=3,overlap=1,recompute={again}")
    asked = Question(model, 1e9, (target,), (instances, instances), batch=ranks, fixed=fixed, precision=precision)
    return plan(asked).chosen.step


CLUSTERS = [("trn2.3xlarge", 1, 4), ("trn1.32xlarge", 1, 32), ("trn1.32xlarge", 2, 64), ("trn2.48xlarge", 1, 64)]
LAYOUTS = [(name, *cluster) for cluster in CLUSTERS for name in MODELS]
HELD = LAYOUTS[:4:2]


def _both(folder, name, target, instances, ranks, precision="bf16", again="none"):
    """Seconds and bytes of the script, and of the plan."""
    cluster = f"{instances}x{target}" if instances > 1 else target
    parts = _parts(MODELS[name], target, instances, ranks, precision, again)
    return _whole(folder, MODELS[name], cluster, ranks, precision, again), (parts.total, sum(parts.bytes.values()))


@pytest.mark.parametrize(
    "layout",
    [pytest.param(HELD[0], marks=pytest.mark.slow), HELD[1]],
    ids=lambda layout: f"{layout[0]} {layout[1]} {layout[3]}",
)
def test_a_step_of_parts_takes_as_long_as_the_script(layout, tmp_path):
    (seconds, memory), parts = _both(tmp_path, *layout)
    assert parts[0] == pytest.approx(seconds, rel=0.01)
    assert parts[1] == pytest.approx(memory, rel=0.002)


@pytest.mark.parametrize("layout", HELD[:1], ids=lambda layout: f"{layout[0]} {layout[1]} {layout[3]}")
def test_a_step_that_makes_its_blocks_again_takes_as_long_as_the_script(layout, tmp_path):
    (seconds, memory), parts = _both(tmp_path, *layout, again="full")
    assert parts[0] == pytest.approx(seconds, rel=0.01)
    assert parts[1] == pytest.approx(memory, rel=0.002)


def _table(precision="bf16"):
    """All layouts, in the rows of docs/plan.md."""
    for layout in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            (seconds, memory), (planned, needed) = _both(Path(folder), *layout, precision)
        figures = f"{seconds * 1e6:,.0f} us | {planned / seconds - 1:+.1%} | {memory / 1e6:.1f} MB"
        print(f"| {layout[0]} | {layout[1]}, {layout[3]} | {figures} | {needed / memory - 1:+.1%} |", flush=True)


if __name__ == "__main__":
    _table(*sys.argv[1:])
