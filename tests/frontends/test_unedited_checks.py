# SPDX-License-Identifier: Apache-2.0
"""Scripts that nobody edited, followed without values: their steps are the programs that a run makes of them."""

from __future__ import annotations

import contextlib
import io
import resource
import runpy
from pathlib import Path

import pytest
import torch
from unedited_scripts import HEAD, INFERENCE, MODEL, PLAIN, TRAINED

import trnlab.frontends.torch as neuron
from trnlab import chips, documents
from trnlab.estimate import text
from trnlab.estimate.document import estimate
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.check.planned import captured
from trnlab.frontends.torch.check.recorded import passes_of
from trnlab.frontends.torch.check.report import examine
from trnlab.frontends.torch.check.script_trace import follow
from trnlab.graph.canonical import canonical_hash
from trnlab.runtime import session
from trnlab.runtime.script import Script

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]
TARGET = chips.target("trn1.2xlarge")
PARAMETERS = 64 * 256 + 256 + 256 * 10 + 10


class Noting(neuron.InterpreterEngine):
    """Keeps the programs that run, in order, by what they are."""

    def __init__(self):
        self.ran = []

    def compile(self, graph, frozen=()):
        program, key = super().compile(graph, frozen), canonical_hash(graph)

        def run(inputs):
            self.ran.append(key)
            return program(inputs)

        return run


def written(folder: Path, source: str) -> Path:
    path = folder / "script.py"
    path.write_text(source)
    return path


def ran(path: Path) -> list[str]:
    """The programs that the script runs."""
    engine = Noting()
    torch.manual_seed(0)
    quiet = contextlib.redirect_stdout(io.StringIO())
    with session.activate(session.Session(TARGET)), recording.using("steps"), neuron.use(engine), quiet:
        runpy.run_path(str(path), run_name="__main__")
        recording.flush()
    return engine.ran


def walked(folder: Path, source: str):
    return follow(Script(written(folder, source)), session.Session(TARGET))


def checked(folder: Path, source: str, *targets: str):
    chosen = [chips.target(name) for name in targets or ("trn1.2xlarge",)]
    return examine(Script(written(folder, source)), chosen, session.Session(chosen[0]))


def line(source: str, part: str) -> int:
    return next(i for i, text in enumerate(source.splitlines(), 1) if part in text)


@pytest.mark.parametrize("name", [*TRAINED, *INFERENCE])
def test_the_programs_of_a_step_are_those_of_a_run(name, tmp_path):
    walk = walked(tmp_path, {**TRAINED, **INFERENCE}[name])
    assert walk.complete
    found = [canonical_hash(g) for g in walk.typical.graphs]
    all_of_run = ran(tmp_path / "script.py")
    assert found
    assert any(all_of_run[i : i + len(found)] == found for i in range(len(all_of_run)))
    assert not walk.typical.host


def test_what_was_recorded_before_is_not_imported_again(tmp_path):
    steps = walked(tmp_path, PLAIN).steps
    assert len({id(g) for step in steps for g in step.graphs}) == 1


def test_time_memory_and_price_of_a_step_on_each_target(tmp_path):
    report = checked(tmp_path, PLAIN, "trn1.2xlarge", "trn2.3xlarge")
    assert (report.how, report.parameters, report.per_step, report.counted) == ("recorded", PARAMETERS, 32, "samples")
    assert report.findings == []
    for target in report.targets:
        assert target.memory.parameters == 4 * PARAMETERS
        assert target.memory.state == 2 * target.memory.parameters
        assert target.memory.batch == 4 * (32 * 64 + 32)
        assert target.memory.activations > 0
        assert set(target.parts) == {"forward", "backward", "update"}
        assert target.per_s > 0
        assert target.usd_per_step > 0
    assert {t.name for t in report.targets[0].memory.largest} >= {"0.weight"}
    assert dict(report.targets[0].modules).keys() >= {"model.*", "optimizer"}
    assert "operators recorded" in documents.text(estimate(report))


def test_gradients_of_several_batches_are_one_step_that_learns_from_all(tmp_path):
    step = walked(tmp_path, TRAINED["gradients of several batches"]).typical
    assert len(step.graphs) == 1
    assert (step.per_step, step.counted) == (3 * 4 * 32, "tokens")


def test_labels_that_are_first_read_but_for_their_last_word_count_whole(tmp_path):
    """As those of T5 and Whisper, which the decoder reads moved by one; a mask that is repeated counts once."""
    source = HEAD + (
        "embed, head = nn.Embedding(50, 16).to('neuron'), nn.Linear(16, 50).to('neuron')\n"
        "optimizer = torch.optim.AdamW([*embed.parameters(), *head.parameters()], lr=1e-3)\n"
        "for i in range(3):\n"
        "    mask, y = torch.ones(4, 9, dtype=torch.long).to('neuron'), torch.randint(50, (4, 8)).to('neuron')\n"
        "    seen = mask[:, None, :].expand(4, 8, 9).sum(2, keepdim=True)\n"
        "    moved = y.new_zeros(y.shape)\n    moved[:, 1:] = y[:, :-1].clone()\n    hidden = seen + embed(moved)\n"
        "    optimizer.zero_grad()\n    F.cross_entropy(head(hidden).view(-1, 50), y.view(-1)).backward()\n"
        "    optimizer.step()\n"
    )
    step = walked(tmp_path, source).typical
    assert (step.per_step, step.counted) == (4 * 8, "tokens")


def test_a_value_before_the_update_cuts_the_step_and_is_told_with_its_line(tmp_path):
    source = TRAINED["a loss that is read before the update"]
    report = checked(tmp_path, source)
    (finding,) = report.findings
    assert (finding.code, finding.severity, finding.place.line) == ("TRN256", "warning", line(source, "item()"))
    assert not report.failed
    memory = report.targets[0].memory
    assert memory.parameters == memory.gradients == memory.state // 2 == 4 * PARAMETERS
    assert set(report.targets[0].parts) == {"forward", "backward", "update"}


def test_what_the_chip_has_no_form_of_is_found_with_its_line(tmp_path):
    source = MODEL + (
        "for x, y in batches():\n"
        "    logits = model(x)\n"
        "    loss = F.cross_entropy(logits, y) + torch.linalg.svdvals(logits.detach()).sum()\n"
        "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    report = checked(tmp_path, source)
    assert {f.code for f in report.findings} == {"TRN250"}
    assert {f.place.line for f in report.findings} == {line(source, "svdvals")}
    assert not report.failed
    assert report.targets[0].step_s > 0
    assert any(o.status == "host" and "svd" in o.name for o in report.operators)


def test_a_forward_pass_alone_is_no_step(tmp_path):
    report = checked(tmp_path, INFERENCE["batches"])
    assert not report.learns
    assert report.steps == 5
    assert (report.per_step, report.counted) == (32, "samples")
    target = report.targets[0]
    assert set(target.parts) == {"forward"}
    assert target.memory.gradients == target.memory.state == 0
    assert target.memory.parameters == 4 * PARAMETERS
    assert target.per_s > 0
    assert "forward pass" in text.head(report)


@pytest.mark.parametrize(
    ("name", "passes", "parameters"),
    [
        ("passes that nobody reads, of a model that is cast there", 3, PARAMETERS),
        ("one pass that nobody reads", 1, PARAMETERS),
        ("passes that go on from each other", 4, PARAMETERS + 54 * 256 + 54),
    ],
)
def test_forward_passes_count_whether_they_are_read_or_not(name, passes, parameters, tmp_path):
    """As many as there are, each of the batch and of the parameters once; a cast of the model is of none."""
    report = checked(tmp_path, INFERENCE[name])
    assert (report.steps, report.per_step, report.counted) == (passes, 32, "samples")
    assert (report.findings, report.learns, report.parameters) == ([], False, parameters)
    (target,) = report.targets
    assert set(target.parts) == {"forward"}
    assert target.mfu > 0


def test_a_step_in_a_function_has_its_phases(tmp_path):
    """Whose loss is gone when the step is computed."""
    source = PLAIN.replace("for x, y in batches():", "def step(x, y):").replace("    print(loss.item())\n", "")
    target = checked(tmp_path, source + "for x, y in batches():\n    step(x, y)\n").targets[0]
    assert set(target.parts) == {"forward", "backward", "update"}
    assert target.parts["update"] < target.parts["backward"]


def test_what_the_host_computed_is_no_batch(tmp_path):
    """Though it is the last tensor of whole numbers that comes to the device: DeBERTa chooses labels so."""
    chosen = "    kept = (y >= 0).nonzero()\n    logits = torch.gather(model(x), 0, kept.expand(-1, 10))\n"
    source = PLAIN.replace("    loss = ", chosen + "    loss = ").replace("model(x), y)", "logits, y)")
    report = checked(tmp_path, source)
    assert (report.per_step, report.counted) == (32, "samples")


@pytest.mark.parametrize(
    ("line", "cut"),
    [
        ("model(x)", "model[1:](h if ((h := model[0](x)) < 9).all() else -h)"),
        ("optimizer.step()", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()\n    optimizer.step()"),
    ],
    ids=["a value within the forward pass", "a norm before the update"],
)
def test_a_step_that_is_cut_has_the_phases_of_its_parts(line, cut, tmp_path):
    """A part before the backward pass is of the forward pass, one behind it of the update, whatever it gives."""
    source = PLAIN.replace("    print(loss.item())\n", "")
    whole = checked(tmp_path, source).targets[0].parts
    parts = checked(tmp_path, source.replace(line, cut)).targets[0].parts
    assert set(parts) == {"forward", "backward", "update"}
    same = {"backward", "update" if "item" not in cut else "forward"}
    assert {name: parts[name] for name in same} == pytest.approx({name: whole[name] for name in same}, rel=0.3)


def test_an_evaluation_between_steps_is_of_none(tmp_path):
    source = PLAIN.replace("    print(loss.item())\n", "    with torch.no_grad():\n        model(x).sum().item()\n")
    assert [len(step.graphs) for step in walked(tmp_path, source).steps[:3]] == [1, 1, 1]


def test_a_model_of_any_size_takes_no_memory(tmp_path):
    source = HEAD + (
        "model = nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(5))).to('neuron')\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
        "for i in range(3):\n    optimizer.zero_grad()\n"
        "    model(torch.randn(128, 16384).to('neuron')).square().mean().backward()\n    optimizer.step()\n"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    target = checked(tmp_path, source, "trn2.3xlarge").targets[0]
    assert target.memory.total > 12 * 2**30
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20 < 1


def test_a_plan_takes_the_recorded_step(tmp_path):
    found = captured(Script(written(tmp_path, TRAINED["gradients of several batches"])), session.Session(TARGET))
    assert (found.samples, found.units) == (12, 32)
    assert found.parameters["h.0.attn.qkv.weight"] == (192, 64)
    assert found.flops > 0


@pytest.mark.parametrize(
    ("sequence", "one", "count"),
    [("abbbb", "b", 4), ("spqpqpqp", "pq", 3), ("pqqqpqqqpqqq", "pqqq", 3), ("abc", "abc", 1), ("bbbc", "b", 3)],
)
def test_the_passes_of_a_script_are_what_comes_again(sequence, one, count):
    graphs = {name: object() for name in sequence}
    found = passes_of([graphs[name] for name in sequence])
    assert found == ([graphs[name] for name in one], count)
