# SPDX-License-Identifier: Apache-2.0
"""Buckets waste least for their number, batches are padded to them, and a run with many lengths proposes some."""

import itertools
import random
import re
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

import trnlab.frontends.torch as neuron
from trnlab import buckets
from trnlab.errors import UsageError


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("multiple_of", [1, 4])
def test_no_other_sizes_waste_less(seed, multiple_of):
    """Beside all choices of as many sizes among the lengths, rounded up, with the longest."""
    lengths = random.Random(seed).choices(range(1, 40), k=9)
    rounded = sorted({-(-n // multiple_of) * multiple_of for n in lengths})
    for most in range(1, len(rounded) + 1):
        plan = buckets.propose(lengths, padding=0, most=most, multiple_of=multiple_of)
        choices = itertools.combinations(rounded[:-1], plan.compiles - 1)
        best = min(buckets.BucketPlan((*c, rounded[-1]), plan.counts).padding for c in choices)
        assert plan.padding == pytest.approx(best)


def test_the_fewest_that_waste_little_enough():
    lengths = [10] * 50 + [20] * 30 + [100] * 5 + [97] * 2
    plan = buckets.propose(lengths, padding=0.01)
    assert plan.sizes == (10, 20, 100)
    assert plan.padding == pytest.approx(6 / (500 + 600 + 700))
    assert buckets.propose(lengths, most=1).sizes == (100,)
    assert buckets.propose(dict.fromkeys((10, 20), 3), padding=0).sizes == (10, 20)
    assert (plan.of(3), plan.of(10), plan.of(11)) == (10, 10, 20)
    assert "3 buckets: 10, 20, 100; padding is 0.3%" in str(plan)
    assert "3 compiles (each length for itself: 4)" in str(plan)
    assert len(buckets.table(lengths).splitlines()) == 5


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (lambda: buckets.propose([]), "TRN226"),
        (lambda: buckets.propose([3, 0]), "TRN226"),
        (lambda: buckets.propose([3], padding=1.0), "TRN226"),
        (lambda: buckets.propose([3], most=0), "TRN226"),
        (lambda: buckets.propose([3]).of(4), "TRN225"),
        (lambda: neuron.PadToBuckets([4])([{"label": 3}]), "TRN227"),
    ],
)
def test_refusals(wrong, code):
    with pytest.raises(UsageError) as info:
        wrong()
    assert info.value.code == code


def samples(*lengths):
    return [{"ids": list(range(1, n + 1)), "labels": torch.arange(n), "kind": n} for n in lengths]


def test_samples_are_padded_to_the_bucket_of_the_longest():
    pad = neuron.PadToBuckets((4, 8), {"labels": -100}, mask="mask")
    batches = list(DataLoader(samples(2, 3, 5, 8), batch_size=2, collate_fn=pad))
    assert [tuple(b["ids"].shape) for b in batches] == [(2, 4), (2, 8)]
    assert batches[0]["ids"].tolist() == [[1, 2, 0, 0], [1, 2, 3, 0]]
    assert batches[0]["labels"].tolist() == [[0, 1, -100, -100], [0, 1, 2, -100]]
    assert batches[0]["mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert batches[1]["kind"].tolist() == [5, 8]


def test_tuples_and_batches_of_another_collator():
    pad = neuron.PadToBuckets((4,), {1: 9})
    x, y = pad([(torch.ones(3, 2), torch.ones(3)), (torch.ones(2, 2), torch.ones(2))])
    assert x.shape == (2, 4, 2)
    assert y.tolist() == [[1, 1, 1, 9], [1, 1, 9, 9]]
    theirs = neuron.PadToBuckets(
        (4,), mask="mask", collate=lambda s: {"ids": torch.ones(2, 3), "label": torch.ones(2)}
    )
    batch = theirs([None, None])
    assert batch["ids"].shape == (2, 4)
    assert batch["label"].shape == (2,)
    assert batch["mask"].tolist() == [[1, 1, 1, 0]] * 2


SCRIPT = """
import torch
import trnlab.frontends.torch as neuron
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 1)).to("neuron")
step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).square().mean())
for n in (3, 4, 5, 6, 7, 6):
    step(torch.arange(n, device="neuron").reshape(1, n) % 8)
"""


def test_a_run_with_many_lengths_proposes_buckets(tmp_path):
    (tmp_path / "many.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "trnlab.cli.main", "run", "--target", "trn1", "many.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    said = next(line for line in ended.stderr.splitlines() if "lengths" in line)
    assert "'train_step' was compiled for 5 lengths from 3 to 7" in said
    assert re.search(r"PadToBuckets\(\(\d+, .*7\)\), see docs/buckets.md", said)
