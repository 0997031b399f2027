# SPDX-License-Identifier: Apache-2.0
"""What the vendor's scripts and libraries call of torch_xla and torch_neuronx: every name, and what it means."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path

import pytest
import torch

from trnlab.errors import TrnlabError, UsageError
from trnlab.frontends import vendor_imports
from trnlab.frontends.torch import compile_step
from trnlab.frontends.torch.xla import (
    arena,
    collectives,
    loaders,
    model,
    names,
    naming,
    serialization,
    spmd,
    steps,
    tracing,
    utils,
    zero,
)
from trnlab.frontends.torch.xla.stubs import checkpoint, loops, operators, sharded, test_utils
from trnlab.runtime import session

NAMES = [
    line.split() for line in Path(__file__).with_name("vendor_names.txt").read_text().splitlines() if line[0] != "#"
]


def _found(full_name):
    """What a dotted name stands for: the longest part that is a module, then attributes."""
    parts = full_name.split(".")
    length = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in vendor_imports.MODULES)
    value = importlib.import_module(vendor_imports.MODULES[".".join(parts[:length])])
    for part in parts[length:]:
        if names.is_refused(value):
            break
        value = getattr(value, part)
    return value


@pytest.fixture(autouse=True)
def _modes():
    """Importing the root has PyTorch's functions take "xla" for the rest of the process; not of this one."""
    yield
    naming.uninstall()


@pytest.mark.parametrize("supported", [True, False], ids=["supported", "refused"])
def test_every_name_that_callers_use_is_supported_or_refused_by_name(supported):
    wrong = []
    for name, state in NAMES:
        if (state == "supported") == supported and names.is_refused(_found(name)) == supported:
            wrong.append(name)
    assert wrong == []


def test_what_a_refused_decorator_was_put_before_is_refused_when_it_is_called():
    """Files of the vendor's libraries that hold such functions are imported by those that call none of them."""
    made = _found("torch_neuronx.xla_impl.ops.xla_hlo_call")(lambda x: x)
    for use in (lambda: made(torch.ones(1)), lambda: _found("torch_neuronx.xla_impl.ops.xla_hlo_call")(1)):
        with pytest.raises(UsageError, match="xla_hlo_call") as caught:
            use()
        assert caught.value.code == "TRN296"


def test_a_place_for_the_vendors_files_can_be_named_and_holds_nothing():
    cache = importlib.import_module(vendor_imports.MODULES["libneuronxla.neuron_cc_cache"])
    for where, kind in (("/somewhere", cache.CompileCacheFs), ("s3://some/where", cache.CompileCacheS3)):
        made = cache.create_compile_cache(cache.CacheUrl.get_cache_url(cache_dir=where))
        assert type(made) is kind
        assert made.cache_path == where
        with pytest.raises(UsageError, match="trnlab cache") as caught:
            made.get_hlos()
        assert caught.value.code == "TRN296"


def test_a_refused_name_can_be_imported_and_subclassed_and_says_what_to_do_when_it_is_used():
    fsdp = sharded.XlaFullyShardedDataParallel
    assert not isinstance(torch.nn.Linear(1, 1), fsdp)
    mine = type("Mine", (fsdp,), {})
    for use in (fsdp, mine, lambda: fsdp.consolidate):
        with pytest.raises(UsageError, match="fully_shard") as caught:
            use()
        assert caught.value.code == "TRN296"
        assert "XlaFullyShardedDataParallel" in str(caught.value)
    assert not hasattr(model, "frobnicate")  # libraries ask so
    with pytest.raises(UsageError, match="mark_step"):
        model.mark_stp  # noqa: B018


# -- one rank -------------------------------------------------------------------------------------------------------
def test_collectives_of_one_rank_return_what_they_were_given():
    value = torch.arange(6.0).reshape(2, 3)
    summed = collectives.all_reduce("sum", value, scale=0.5)
    assert torch.equal(summed, value * 0.5)
    assert torch.equal(value, torch.arange(6.0).reshape(2, 3))  # a tensor is not changed
    listed = [value.clone()]
    assert collectives.all_reduce("max", listed, scale=2.0) is listed
    assert torch.equal(listed[0], value * 2)
    assert torch.equal(collectives.all_gather(value, 1), value)
    assert torch.equal(collectives.reduce_scatter("sum", value, 2.0, 0, 1), value * 2)
    assert torch.equal(collectives.all_to_all(value, 0, 1, 1), value)
    assert torch.equal(collectives.collective_permute(value, [(0, 0)]), value)
    assert collectives.mesh_reduce("tag", 3, sum) == 3
    assert collectives.rendezvous("tag", b"here") == [b"here"]
    assert collectives.is_master_ordinal()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: collectives.all_reduce("average", torch.zeros(1)), "no such reduction"),
        (lambda: collectives.all_reduce("sum", torch.zeros(1), groups=[[1, 2]]), "none of the groups"),
        (lambda: collectives.reduce_scatter("sum", torch.zeros(3), 1.0, 0, 2), "equal parts"),
    ],
)
def test_collectives_refuse_by_code(wrong, says):
    with pytest.raises(TrnlabError, match=says) as caught:
        wrong()
    assert caught.value.code == "TRN297"


def test_closures_of_a_step_are_called_at_its_end():
    called = []
    steps.add_step_closure(called.append, ("first",))
    steps.add_step_closure(called.append, ("second",), run_async=True)
    assert called == []
    steps.mark_step()
    steps.mark_step()
    assert called == ["first", "second"]


def test_a_callback_of_snapshots_is_asked_in_each_step_and_may_want_none(monkeypatch):
    monkeypatch.setattr(steps, "_snapshots", [])
    asked, answers = [], iter(["", "inputs outputs"])
    _found("libneuronxla.register_hlo_snapshot_callback")(lambda *about: asked.append(about) or next(answers))
    steps.mark_step()
    with pytest.raises(TrnlabError, match="inputs outputs as a file of HLO") as caught:
        steps.mark_step()
    assert caught.value.code == "TRN296"
    (_, _, first), (_, _, second) = asked
    assert second == first + 1


def test_loaders_put_batches_on_the_device_and_end_a_step_before_each():
    ended = []
    batches = [{"x": torch.ones(2), "y": [torch.zeros(1), "name"]}, {"x": torch.zeros(2), "y": [torch.ones(1), "it"]}]
    loader = loaders.MpDeviceLoader(batches, "neuron", batches_per_execution=1)
    assert len(loader) == 2
    for _ in range(2):  # a second epoch begins anew
        seen = []
        for batch in loader:
            seen.append(batch)
            steps.add_step_closure(ended.append, (len(seen),))
        assert [batch["x"].device.type for batch in seen] == ["neuron"] * 2
        assert [batch["y"][1] for batch in seen] == ["name", "it"]
    assert ended == [1, 2, 1, 2]
    assert torch.equal(seen[0]["x"].cpu(), torch.ones(2))
    several = loaders.ParallelLoader(batches, ["neuron"])
    assert isinstance(several.per_device_loader("neuron"), loaders.PerDeviceLoader)


def test_nested_values_are_rewritten_where_they_are_chosen():
    class Held:
        def __init__(self, value):
            self.value, self.name = value, "held"

    held = Held(torch.ones(1))
    nested = {"a": [torch.zeros(1), (torch.ones(2), "word")], "b": held}
    made = arena.ToXlaTensorArena(
        lambda tensors: [len(tensors)] * len(tensors), lambda part: isinstance(part, torch.Tensor)
    ).transform(nested)
    assert made["a"] == [3, (3, "word")]
    assert made["b"].value == 3
    assert isinstance(held.value, torch.Tensor)  # the given value is as it was


def test_values_are_saved_from_the_host_with_each_tensor_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_xla", serialization)  # under whose names files refer to tensors
    monkeypatch.setitem(sys.modules, "torch_xla.utils", serialization)
    monkeypatch.setitem(sys.modules, "torch_xla.utils.serialization", serialization)
    state = {"weight": torch.arange(4.0).to("neuron"), "step": 3, "more": [torch.ones(2).to("neuron")]}
    path = str(tmp_path / "state.pt")
    serialization.save(state, path)
    assert (tmp_path / "state.pt.tensors" / "tensor_1.pt").is_file()
    read = serialization.load(path)
    assert read["step"] == 3
    assert read["weight"].device.type == "cpu"
    assert torch.equal(read["weight"], torch.arange(4.0))
    model.save(state, tmp_path / "plain.pt")
    assert torch.load(tmp_path / "plain.pt")["more"][0].device.type == "cpu"


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("weights", [True, False], ids=["weights in its state", "none"])
def test_the_optimizer_of_parts_does_with_one_rank_what_the_whole_one_does(accumulate, weights):
    def trained(make):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        optimizer = make(layer.parameters())
        for step in range(4):
            (layer(torch.ones(2, 3) * step) ** 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1 and isinstance(optimizer, zero.ZeroRedundancyOptimizer):  # stop, and go on
                state = optimizer.state_dict()
                assert state["shape_info"][0] == (2, 3)
                optimizer.remove_hooks()
                saved = copy.deepcopy(layer.state_dict())
                torch.nn.init.zeros_(layer.weight)
                optimizer = make(layer.parameters())
                optimizer.load_state_dict(state)
                layer.load_state_dict(saved)  # after the optimizer, as the vendor's library does
        return layer.weight.detach()

    def parts(parameters):
        return zero.ZeroRedundancyOptimizer(
            parameters,
            torch.optim.AdamW,
            grad_clipping=False,
            lr=0.1,
            use_grad_acc_hook=accumulate,
            save_master_weights=weights,
        )

    torch.testing.assert_close(trained(parts), trained(lambda p: torch.optim.AdamW(p, lr=0.1)))


def test_the_optimizer_of_parts_clips_by_the_norm_of_all():
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = zero.ZeroRedundancyOptimizer([weight], torch.optim.SGD, max_norm=1.0, lr=1.0)
    (0.5 * weight.square()).sum().backward()
    optimizer.step()
    torch.testing.assert_close(optimizer.grad_norm, torch.tensor(5.0))
    torch.testing.assert_close(weight.detach(), torch.tensor([2.4, 3.2]))


def test_activations_are_computed_again():
    calls = []
    layer = torch.nn.Linear(2, 2)

    def block(x):
        calls.append(1)
        return layer(x)

    checkpoint.checkpoint(block, torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert len(calls) == 2
    assert layer.weight.grad is not None


def test_marks_of_a_mesh_change_nothing_and_a_mesh_of_several_devices_is_refused():
    mesh = spmd.Mesh([0], (1, 1), ("data", "model"))
    value = torch.ones(2, 2)
    assert spmd.mark_sharding(value, mesh, ("data", None)) is value
    assert mesh.shape() == {"data": 1, "model": 1}
    for wrong in (lambda: spmd.Mesh(range(8), (8,)), lambda: spmd.mark_sharding(value, mesh, (None,) * 3)):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.code == "TRN298"


def test_a_traced_model_runs_on_the_chip_for_the_shapes_of_its_examples():
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    expected = layer(x)
    with session.activate(
        session.from_environment({"TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_PRECISION": "fp32"})
    ) as now:
        traced = tracing.trace(layer, x)
        assert torch.allclose(traced(x), expected.detach(), atol=1e-5)
        assert now.counters.instructions > 0
        with pytest.raises(UsageError) as caught:
            traced(torch.randn(3, 4))
        assert caught.value.code == "TRN299"
        assert tracing.dynamic_batch(traced)(torch.randn(3, 4)).shape == (3, 3)


def test_the_vendors_operators_are_pytorchs():
    x = torch.randn(2, 8)
    normal = torch.nn.functional.rms_norm(x, (8,), torch.ones(8) * 2, 1e-6)
    torch.testing.assert_close(operators.RmsNorm.apply(x, torch.ones(8) * 2, 1e-6, 1), normal)
    assert torch.equal(operators.Argmax.apply(x, 1), x.argmax(1))
    assert torch.equal(operators.TopK.apply(x, 2, 1)[1], x.topk(2, 1).indices)


def test_loops_over_layers():
    total, each = loops.scan(lambda carry, x: (carry + x, carry * 2), torch.zeros(2), torch.ones(3, 2))
    assert torch.equal(total, torch.full((2,), 3.0))
    assert each.shape == (3, 2)
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    x = torch.ones(1, 2)
    assert torch.equal(loops.scan_layers(layers, x), layers[1](layers[0](x)))


def test_made_up_data_and_lines(capsys, monkeypatch):
    made = utils.SampleGenerator((1, 2), 3)
    assert [*made] == [(1, 2)] * 3 == [*made]
    monkeypatch.setenv("XLA_SOMETHING", "0")
    assert utils.getenv_as("XLA_SOMETHING", bool, True) is False
    assert utils.getenv_as("XLA_NOTHING", int, 7) == 7
    assert utils.get_free_tcp_ports(2)[0] > 0
    test_utils.print_training_update("xla:0", 3, torch.tensor(0.5), 1.0, 2.0)
    assert "Step=3 Loss=0.50000" in capsys.readouterr().out


def test_a_traced_model_has_its_weights_laid_out_once():
    """PyTorch's encoder, in bf16's products: the first call lays weights out, further ones do not, and the copy that
    was traced does not see what becomes of the model."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
    model, x = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 16, 64)
    expected = model(x).detach()
    with session.activate(session.from_environment({"TRNLAB_TARGET": "inf2.xlarge"})) as now:
        names = {}
        for inline in (True, False):
            traced = tracing.trace(model, x, inline_weights_to_neff=inline)
            before = now.counters.instructions
            again = traced(x)
            assert (again - expected).abs().max() < 0.05
            names[inline] = now.counters.instructions - before
        assert names[True] < names[False]
        assert any(e.name.endswith("_weights") for e in now.executables.values())
        with torch.no_grad():
            model.layers[0].linear2.weight.zero_()
        assert torch.equal(traced(x), again)


def test_frozen_weights_that_were_written_to_are_laid_out_again():
    torch.manual_seed(0)
    with session.activate(session.from_environment({"TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_PRECISION": "fp32"})):
        model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 8)).to("neuron")
        x, y = torch.randn(5, 64).to("neuron"), torch.zeros(5, dtype=torch.long).to("neuron")
        frozen = torch.compile(model, backend="neuron", dynamic=False, options={"freezing": True})
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

        def same():
            with torch.no_grad():
                return torch.allclose(frozen(x).cpu(), copy.deepcopy(model).cpu()(x.cpu()), atol=1e-4)

        assert same()
        assert same()
        compile_step(model, optimizer, lambda m, x, y: torch.nn.functional.cross_entropy(m(x), y))(x, y)
        assert same()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        assert same()
        model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
        assert same()
