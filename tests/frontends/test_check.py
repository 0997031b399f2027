# SPDX-License-Identifier: Apache-2.0
"""`trnlab check`: whatever is planted in a script is found, with its line, and nothing else is."""

from __future__ import annotations

import ast
import json
import resource
from pathlib import Path

import pytest
import torch
from check_scripts import CLEAN, HEAD, OBSTACLES, PLAIN, STEP, planted

from trnlab import chips
from trnlab.documents import page, text
from trnlab.estimate.document import check
from trnlab.estimate.result import Report, from_json, to_json
from trnlab.frontends.torch.check.live_objects import alive, only_new_ones
from trnlab.frontends.torch.check.report import examine
from trnlab.frontends.torch.check.unmaterialized import Unwritten, is_large
from trnlab.runtime import device
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session
from trnlab.stacks import parse

pytestmark = pytest.mark.torch


def checked(folder: Path, source: str, *targets: str) -> Report:
    """The report on a script, for trn1.2xlarge unless others are named."""
    path = folder / "script.py"
    path.write_text(source)
    chosen = [chips.target(name) for name in targets or ("trn1.2xlarge",)]
    return examine(Script(path), chosen, Session(chosen[0]))


def found(report: Report) -> set[tuple[str, int]]:
    """Codes and lines of the findings, all their places."""
    return {(f.code, p.line) for f in report.findings for p in (f.place, *f.places)}


@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_found_in_clean_scripts(name, tmp_path):
    report = checked(tmp_path, CLEAN[name])
    assert [(f.code, f.what, f.why) for f in report.findings] == []
    assert report.steps >= 2
    assert not report.failed
    assert report.targets[0].step_s > 0
    assert all(o.status == "supported" for o in report.operators if o.name != "aten.ones_like")


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_is_planted_is_found_and_nothing_else(name, tmp_path):
    report = checked(tmp_path, OBSTACLES[name])
    assert found(report) == planted(OBSTACLES[name]), text(check(report))
    for f in report.findings:
        assert f.what
        assert f.do
        assert not f.place.file or Path(f.place.file).name == "script.py"


def test_stacks_that_compile_alike_share_programs(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(device, "_build", lambda *given, build=device._build: made.append(given) or build(*given))
    path = tmp_path / "script.py"
    path.write_text(next(iter(CLEAN.values())))
    target = chips.target("trn1.2xlarge")
    asked = [
        parse(text)
        for text in ("vendor,order=scheduled,rows=joined", "vendor,order=scheduled,rows=joined,tracing_us=0", "ours")
    ]
    report = examine(Script(path), [target], Session(target), asked)
    slow, *same = report.results
    assert len(made) == len({id(graph) for graph, *_ in made}) > 0
    assert slow.step_s > same[0].step_s == same[1].step_s
    assert report.targets == [slow]
    assert from_json(json.loads(json.dumps(to_json(report)))) == report


@pytest.fixture(scope="module")
def troubled(tmp_path_factory) -> Report:
    """The report on a script with several obstacles, for two targets."""
    source = HEAD + (
        "def loss_fn(model, x, y):\n    h = model(x)\n    if h.sum() > 0:\n        h = h * 2\n"
        "    z = torch.linalg.svd(h)[1].sum() + h.erfinv().sum() + h[y > 1].sum()\n"
        "    return F.cross_entropy(h, y) + z\n"
    )
    return checked(tmp_path_factory.mktemp("check"), source + STEP, "trn1.2xlarge", "trn2.3xlarge")


def test_one_walk_finds_all_refusals_and_still_tells_time_and_memory(troubled):
    assert [f.code for f in troubled.findings] == ["TRN204", "TRN204", "TRN201", "TRN201"]
    assert {o.name for o in troubled.operators if o.status == "refused"} >= {"aten._linalg_svd", "aten.erfinv"}
    assert troubled.failed
    for target in troubled.targets:
        assert target.step_s > 0
        assert 0 < target.memory.total < target.capacity
        assert target.usd_per_step > 0
    assert troubled.notes


def test_the_record_goes_through_json_and_back(troubled):
    record = json.loads(json.dumps(to_json(troubled)))
    assert to_json(from_json(record)) == to_json(troubled)
    assert record["failed"] is True
    assert record["targets"][0]["memory"]["total"] == troubled.targets[0].memory.total


def test_the_text_and_the_page_say_what_was_found(troubled):
    said, shown = text(check(troubled)), page(check(troubled))
    for f in troubled.findings:
        assert f"{f.code}  {f.what}" in said
        assert str(f.place) in said
        assert f.code in shown
    for part in ("trn2.3xlarge", "4 errors", "memory of one core's step", "optimizer state"):
        assert part in said
    for part in (
        "Targets side by side",
        "Memory of a core of trn1",
        "time goes on trn2.3xlarge",
        "aten.erfinv",
    ):
        assert part in shown


def test_the_shares_of_a_step_add_up(troubled):
    for target in troubled.targets:
        parts = sum(target.parts.values())
        assert set(target.parts) == {"forward", "backward", "update"}
        assert 0.9 * target.step_s < parts <= target.step_s
        assert abs(sum(s for _, s in target.modules) - parts) < 1e-3 * parts


def test_memory_is_told_by_kind(tmp_path):
    memory = checked(tmp_path, CLEAN["compile_step"]).targets[0].memory
    parameters = 4 * (16 * 32 + 32 + 32 * 4 + 4)
    assert memory.parameters == parameters
    assert memory.state == 2 * parameters
    assert memory.batch == 6 * 16 * 4 + 6 * 4
    assert memory.largest[0].bytes == 16 * 32 * 4
    assert memory.total == sum((memory.kept, memory.rest))


def test_a_loop_of_torch_compile_holds_what_lies_between_its_programs(tmp_path):
    memory = checked(tmp_path, CLEAN["torch.compile"]).targets[0].memory
    parameters = 4 * (16 * 32 + 32 + 32 * 4 + 4)
    assert memory.parameters == memory.gradients == parameters
    assert memory.state == 2 * parameters


def test_a_model_of_any_size_takes_no_memory_and_is_laid_out(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Five layers: two cores need to share the optimizer's state alone.
    script = OBSTACLES["too large for a core"].replace("range(6)", "range(5)")
    target = checked(tmp_path, script, "trn2.3xlarge").targets[0]
    gigabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    assert target.memory.total > 12 * 2**30
    assert gigabytes < 1
    lay = target.layout
    assert lay.cores == 2
    assert lay.bytes_per_core <= target.capacity
    assert lay.time_s[0] <= target.step_s <= lay.time_s[1] == pytest.approx(target.step_s + lay.communication_s)


def test_weights_without_values_are_not_saved_over_good_ones(tmp_path):
    good = tmp_path / "weights.pt"
    good.write_bytes(b"good")
    source = HEAD + PLAIN + STEP + f"    torch.save(model.state_dict(), {str(good)!r})\n"
    assert checked(tmp_path, source).findings == []
    assert good.read_bytes() == b"good"


def test_a_number_of_the_model_that_each_step_changes_is_one_finding(tmp_path):
    source = (
        HEAD
        + PLAIN
        + """
step = compile_step(model, optimizer, lambda model, x, y: loss_fn(model, x, y) * model.warmth)
for i, (x, y) in enumerate(batches(4)):
    model.warmth = 1 + i / 10
    step(x, y)
"""
    )
    (finding,) = checked(tmp_path, source).findings
    assert finding.code == "TRN253"
    assert "model.warmth" in finding.why
    assert "goes on changing" in finding.why


def test_numbers_of_the_optimizer_that_each_step_changes_are_inputs(tmp_path):
    source = (
        HEAD
        + PLAIN
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50)
step = compile_step(model, optimizer, loss_fn)
for x, y in batches(4):
    step(x, y)
    schedule.step()
"""
    )
    assert checked(tmp_path, source).findings == []


def test_values_stay_where_they_are_small_or_whole_numbers():
    with Unwritten(lambda name: None, lambda op, args: None):
        small, ids = torch.full((8,), 3.0), torch.arange(200_000)
        large = torch.ones(100_000)
        scores = large.to("neuron") * 2
        doubled = (small.to("neuron") * 2).cpu()
    assert doubled.tolist() == [6.0] * 8
    assert ids[-1].item() == 199_999
    assert is_large(large)
    assert is_large(scores)
    assert scores.shape == (100_000,)
    assert scores.device.type == "neuron"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("options that it does not know", "unrecognized arguments: --cahce"),
        ("an end with a message", "no data at /nowhere"),
    ],
)
def test_what_a_script_said_before_it_ended_is_told(name, said, tmp_path):
    (finding,) = checked(tmp_path, OBSTACLES[name]).findings
    assert said in finding.why


def test_what_was_there_before_a_script_is_not_looked_through():
    def found():
        return set(map(id, alive(torch.nn.Bilinear)))

    before = torch.nn.Bilinear(1, 1, 1)
    with only_new_ones():
        new = torch.nn.Bilinear(1, 1, 1)
        with only_new_ones():  # as where a rank is followed for another
            assert found() == {id(new)}
        assert found() == {id(new)}
    assert {id(before), id(new)} <= found()


def test_scripts_are_python():
    for source in (*CLEAN.values(), *OBSTACLES.values(), HEAD + PLAIN):
        ast.parse(source)


BY_HAND = {
    "data in place": "for p in m.parameters(): p.data.add_(p.grad, alpha=-0.1)",
    "data exchanged": "for p in m.parameters(): p.data = p.data - 0.1 * p.grad",
    "without gradients": "with torch.no_grad():\n        for p in m.parameters(): p -= 0.1 * p.grad",
    "together": "torch._foreach_add_([p.data for p in m.parameters()], [p.grad for p in m.parameters()], alpha=-0.1)",
    "an optimizer, then clamped": "o.step()\n    for p in m.parameters(): p.data.clamp_(-1, 1)",
}


@pytest.mark.parametrize("way", BY_HAND)
def test_steps_of_scripts_that_change_their_parameters_by_themselves(way, tmp_path):
    report = checked(
        tmp_path,
        "import torch\nm = torch.nn.Linear(300, 400).to('neuron'); o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(4):\n    m.zero_grad()\n"
        "    for part in range(2): m(torch.randn(200, 300).to('neuron')).sum().backward()\n"
        f"    torch.nn.utils.clip_grad_norm_(m.parameters(), 0.25)\n    {BY_HAND[way]}\n",
    )
    assert not report.failed
    assert report.steps == 4
    assert report.parameters == 300 * 400 + 400
