# SPDX-License-Identifier: Apache-2.0
"""What belongs to the process, to replicas, shards and groups, and changes between steps: programs follow it."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from ranks import RankEngine, _captured, being
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, _random, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as rings
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from trnlab.errors import GraphError, TrnlabError
from trnlab.frontends.common import engine
from trnlab.frontends.torch import compile_step

pytestmark = pytest.mark.torch
ROWS, WIDTH, RANKS = 4, 8, 4


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape or (ROWS, WIDTH), dtype=dtype, device="neuron")


def layers():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)).to("neuron")


def squares(model, x, y):
    return F.mse_loss(model(x), y)


def whole_squares(model, x, y):
    return squares(model, x, y).full_tensor()


# -- a model, its loss and a batch, on one of four ranks ---


def replica():
    return DistributedDataParallel(layers()), squares, (zeros(), zeros())


def shards():
    made = layers()
    return fully_shard(made), squares, (zeros(), zeros())


def hybrid():
    made = layers()
    mesh = init_device_mesh("neuron", (2, 2), mesh_dim_names=("copies", "shards"))
    return fully_shard(made, mesh=mesh), squares, (zeros(), zeros())


def tensors():
    mesh = init_device_mesh("neuron", (dist.get_world_size(),))
    batch = [distribute_tensor(zeros(), mesh, [Shard(0)]) for _ in range(2)]
    return distribute_module(layers(), mesh), whole_squares, tuple(batch)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q = self.inward(x)[None, None]
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)[0, 0]


def around(mesh):
    return context_parallel(mesh, buffers=[zeros(2 * RANKS)], buffer_seq_dims=[0])


def attention():
    return Attention().to("neuron"), squares, (zeros(), zeros())


def ring():
    mesh = init_device_mesh("neuron", (dist.get_world_size(),))

    def loss(model, x, y):
        with around(mesh):
            return squares(model, x, y)

    return attention()[0], loss, (zeros(), zeros())


def classes():
    made = parallelize_module(
        layers(), init_device_mesh("neuron", (dist.get_world_size(),)), {"2": ColwiseParallel(use_local_output=False)}
    )

    def loss(model, x, y):
        scores = model(x)
        placed = distribute_tensor(y, scores.device_mesh, [Replicate()])
        return F.cross_entropy(scores, placed).full_tensor()

    return made, loss, (zeros(), zeros(ROWS, dtype=torch.long))


def named():
    name = dist.new_group([0, 1]).group_name
    return layers(), lambda model, x, y: functional.all_reduce(squares(model, x, y), "sum", name), (zeros(), zeros())


def counted():
    return layers(), lambda model, *batch: squares(model, *batch) / dist.get_world_size(), (zeros(), zeros())


# -- what changes ---


def setting(owner, name, value):
    def change(patch, model, batch):
        patch.setattr(owner(model), name, value)

    return change


def hook(state, bucket):
    return bucket


def placed_otherwise(patch, model, batch):
    mesh = batch[0].device_mesh
    return tuple(distribute_tensor(zeros(), mesh, [Replicate()]) for _ in batch)


def parameter_placed_otherwise(patch, model, batch):
    parameter = model[0].weight
    other = distribute_tensor(parameter._local_tensor, parameter.device_mesh, [Shard(0)])
    patch.setattr(parameter, "_local_tensor", other._local_tensor)
    patch.setattr(parameter, "_spec", other._spec)


def anew(ranks, size):
    def change(patch, model, batch):
        dist.destroy_process_group()
        dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
        dist.new_group(ranks)

    return change


def policy(patch, model, batch):
    group = model._get_fsdp_state()._fsdp_param_groups[0]
    patch.setattr(group, "mp_policy", MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def itself(model):
    return model


def options(model):
    return rings._cp_options


def enter(make):
    return lambda patch, model, batch: make()


CHANGES = {
    "no_sync": (replica, lambda patch, model, batch: model.no_sync()),
    "hook": (replica, lambda patch, model, batch: model.register_comm_hook(None, hook)),
    "group of replicas": (
        replica,
        lambda patch, model, batch: setting(itself, "process_group", dist.new_group([0, 1]))(patch, model, batch),
    ),
    "ignored parameters": (replica, setting(itself, "parameters_to_ignore", {"0.weight"})),
    "factor of gradients": (shards, lambda patch, model, batch: model.set_gradient_divide_factor(3.0)),
    "sums": (shards, lambda patch, model, batch: model.set_force_sum_reduction_for_comms(True)),
    "gradients stay": (shards, lambda patch, model, batch: model.set_requires_gradient_sync(False)),
    "hook of shards": (shards, lambda patch, model, batch: model.set_all_reduce_hook(lambda gradient: None)),
    "precision of shards": (shards, policy),
    "replicas of shards": (hybrid, lambda patch, model, batch: model.set_requires_all_reduce(False)),
    "batch placed otherwise": (tensors, placed_otherwise),
    "parameter placed otherwise": (tensors, parameter_placed_otherwise),
    "random regions": (tensors, setting(lambda model: _random._rng_tracker, "distribute_region_enabled", False)),
    "balance": (ring, setting(options, "enable_load_balance", False)),
    "rounds": (ring, setting(options, "rotate_method", rings._RotateMethod.ALL_TO_ALL)),
    "sums of the ring": (ring, setting(options, "convert_to_f32", False)),
    "a ring": (attention, enter(lambda: around(init_device_mesh("neuron", (dist.get_world_size(),))))),
    "loss parallel": (classes, enter(loss_parallel)),
    "a name's group": (named, anew([0, 2], RANKS)),
    "the world": (counted, anew([0], 2)),
}


REFUSED = {
    "no_sync": "TRN266",
    "hook": "TRN266",
    "gradients stay": "TRN267",
    "hook of shards": "TRN267",
    "replicas of shards": "TRN267",
}


@pytest.mark.filterwarnings("ignore:.*DDP Communication:UserWarning")
@pytest.mark.parametrize("what", CHANGES)
def test_a_captured_step_follows(monkeypatch, capsys, what):
    """It is captured again, or refuses what it cannot do; it does neither where nothing has changed."""
    make, change = CHANGES[what]
    with being(0, 2 if make in (attention, ring) else RANKS):  # rounds of a ring take their time
        model, loss, batch = make()
        step = compile_step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
        with engine.use(RankEngine(False)):
            first = _captured(step, batch)
            assert _captured(step, batch) is first
            assert "captured again" not in capsys.readouterr().err
            entered = change(monkeypatch, model, batch)
            other = isinstance(entered, tuple)  # another form of the batch, which needs no reason
            refused = pytest.raises(TrnlabError, match=REFUSED[what]) if what in REFUSED else nullcontext()
            with entered if hasattr(entered, "__enter__") else nullcontext(), refused:
                assert _captured(step, entered if other else batch) is not first
            assert other or "captured again" in capsys.readouterr().err


def test_compiled_code_follows_groups_that_take_a_name_again():
    seen = RankEngine(False)

    @torch.compile(backend="neuron")
    def total(x):
        return functional.all_reduce(x + 1, "sum", name)

    with being(0, RANKS), engine.use(seen), torch.no_grad():
        name = dist.new_group([0, 1]).group_name
        for change in (None, None, anew([0, 2], RANKS)):
            if change is not None:
                change(None, None, None)
            with pytest.raises(GraphError, match="TRN308"):  # nobody is there to add up with
                total(zeros())
        groups = [op.attrs["replica_groups"] for g in seen.graphs for op in g.ops if op.name == "all_reduce"]
    assert groups == [(0, 1, 2, 3), (0, 2, 1, 3)]


def test_compiled_code_follows_random_regions(monkeypatch):
    seen = RankEngine(False)
    with being(0, RANKS), engine.use(seen):
        mesh = init_device_mesh("neuron", (dist.get_world_size(),))
        x = distribute_tensor(zeros(), mesh, [Shard(0)])
        draw = torch.compile(lambda x: torch.rand_like(x), backend="neuron")
        for _ in range(2):
            draw(x)
        assert len(seen.graphs) == 1
        monkeypatch.setattr(_random._rng_tracker, "distribute_region_enabled", False)
        draw(x)
        assert len(seen.graphs) == 2
