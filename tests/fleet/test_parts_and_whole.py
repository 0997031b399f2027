# SPDX-License-Identifier: Apache-2.0
"""A step put together from stages takes as long as `trnlab estimate` finds for the script that trains so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trnlab.cli.main import main
from trnlab.fleet import Question, plan
from trnlab.fleet.layout import pinned
from trnlab.fleet.models import Attention, Block, Dense, Model

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = """
import sys
sys.path.insert(0, {examples!r})
import train_llama as llama
llama.MODELS["small"] = llama.Config({hidden}, {layers}, {heads}, {shared}, {mlp}, {words}, {length})
llama.Block.forward = llama.Block._forward  # keeps its activations
sys.argv += ["--model", "small", "--steps", "1"]
llama.main()
"""
MODELS = {
    "narrow": {"hidden": 512, "layers": 4, "heads": 4, "shared": 2, "mlp": 1408, "words": 2048, "length": 512},
    "wide": {"hidden": 1024, "layers": 2, "heads": 8, "shared": 8, "mlp": 2816, "words": 4096, "length": 512},
}


def _whole(tmp_path, capsys, sizes, target, ranks):
    """Seconds of the script's step."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(examples=str(EXAMPLES), **sizes))
    asked = ["estimate", "--json", "--no-cache", "--target", target, "--ranks", str(ranks), str(script)]
    assert main(asked) == 0
    return json.loads(capsys.readouterr().out)["targets"][0]["step_s"]


def _parts(sizes, target, instances, ranks):
    """The step of the same layout from its stages: weights, gradients and state divided among all ranks."""
    size = sizes["hidden"] // sizes["heads"]
    block = Block(sizes["hidden"], Attention(sizes["heads"], sizes["shared"], size, size), Dense(sizes["mlp"]))
    model = Model("small", sizes["hidden"], ((sizes["layers"], block),), sizes["length"], sizes["words"])
    fixed = pinned("tp=1,pp=1,mb=1,zero=3,overlap=1,recompute=none")
    asked = Question(model, 1e9, (target,), (instances, instances), batch=ranks, fixed=fixed)
    return plan(asked).chosen.step


# Within 5 %; docs/plan.md has those that are not.
LAYOUTS = [("wide", "trn1.32xlarge", 1, 32), ("wide", "trn2.48xlarge", 1, 64)]


@pytest.mark.parametrize(("name", "target", "instances", "ranks"), LAYOUTS)
def test_a_step_of_parts_takes_as_long_as_the_script(name, target, instances, ranks, tmp_path, capsys):
    whole = _whole(tmp_path, capsys, MODELS[name], f"{instances}x{target}" if instances > 1 else target, ranks)
    parts = _parts(MODELS[name], target, instances, ranks)
    assert parts.total == pytest.approx(whole, rel=0.05)
