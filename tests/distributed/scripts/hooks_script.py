# SPDX-License-Identifier: Apache-2.0
"""Communication hooks, futures whose callbacks ask for collectives, SyncBatchNorm and FSDP1, as with gloo.

Every check trains once on tensors of the host over gloo and once on the device.
"""

import copy
import datetime

import torch
import torch.distributed as dist
from together import DEVICE, RANK, RANKS, meet, on, report
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, ShardMetadata
from torch.distributed.algorithms._comm_hooks import default_hooks as sharded_hooks
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    debugging_hooks,
    default_hooks,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer, _FunctionalSGD
from torch.nn.parallel import DistributedDataParallel

NEAR = 2e-6
meet("hooks", timeout=datetime.timedelta(seconds=120))
GLOO = dist.new_group(backend="gloo")
OURS = dist.new_group()
torch.manual_seed(1)
INPUTS, TARGETS = torch.randn(8, 8), torch.randn(8, 4)


def net(norm=False):
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(16) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(8, 16), middle, nn.ReLU(), nn.Linear(16, 4))


def trained(device, group, register, optimizer=None, model=None, steps=3, **options):
    """Parameters after some steps on this rank's half of the batch, and the model."""
    model = model or DistributedDataParallel(net().to(device), process_group=group, bucket_cap_mb=0.0005, **options)
    chosen = (register and register(model, group)) or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, y = (t.chunk(RANKS)[RANK].to(device) for t in (INPUTS, TARGETS))
    for _ in range(steps):
        if chosen != "overlapped":
            chosen.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if chosen != "overlapped":
            chosen.step()
    return [p.detach().cpu() for p in model.parameters()]


def compare(register, near=NEAR, **options):
    expected = trained("cpu", GLOO, register, **options)
    got = trained(DEVICE, OURS, register, **options)
    for mine, other in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=near)


def hook(function, state=lambda group: group):
    return lambda model, group: model.register_comm_hook(state(group), function)


def plain_hooks():
    for function in (
        default_hooks.allreduce_hook,
        default_hooks.fp16_compress_hook,
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
        debugging_hooks.noop_hook,
    ):
        compare(hook(function))
    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        compare(lambda model, group: model._register_builtin_comm_hook(kind))  # noqa: B023


def hooks_that_pytorch_has_for_no_backend_of_the_host():
    exact = trained("cpu", GLOO, None)
    for function, near in (
        (default_hooks.bf16_compress_hook, 1e-3),
        (default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook), 1e-3),
        (quantization_hooks.quantization_pertensor_hook, 2e-2),
        (quantization_hooks.quantization_perchannel_hook, 2e-2),
    ):
        for mine, other in zip(trained(DEVICE, OURS, hook(function)), exact, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=near)


def power_sgd():
    """(PyTorch's batched form fails of itself, over gloo too: its matrices have two dimensions where it asks for
    three.)"""

    def state(group):
        return powerSGD_hook.PowerSGDState(group, 1, start_powerSGD_iter=2, min_compression_rate=0.5)

    compare(hook(powerSGD_hook.powerSGD_hook, state), near=1e-4)


def local_sgd():
    def register(model, group):
        state = post_localSGD_hook.PostLocalSGDState(group, group, start_localSGD_iter=1)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=2, warmup_steps=1, process_group=group)
        return PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), averager)

    compare(register)


def overlapped_optimizers():
    def register(model, group):
        state = optimizer_overlap_hooks._OptimizerHookState(_FunctionalSGD([], 0.1, _allow_empty_param_list=True))
        model.register_comm_hook(
            group, optimizer_overlap_hooks._hook_then_optimizer(default_hooks.allreduce_hook, state)
        )
        return "overlapped"

    compare(register)


def zero_with_hooks():
    """PyTorch has it for no backend of the host: all ranks learn, and as without hooks."""
    exact = trained("cpu", GLOO, lambda model, group: torch.optim.SGD(model.parameters(), 0.1), steps=4)
    for with_step in (ddp_zero_hook.hook_with_zero_step, ddp_zero_hook.hook_with_zero_step_interleaved):

        def register(model, group):
            chosen = ZeroRedundancyOptimizer(
                model.parameters(), torch.optim.SGD, overlap_with_ddp=True, process_group=group, lr=0.1
            )
            model.register_comm_hook(None, with_step(default_hooks.allreduce_hook, model, chosen))  # noqa: B023
            return chosen

        got = trained(DEVICE, OURS, register, steps=6)  # of which the first two find out how buckets lie
        for mine, other in zip(got, exact, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=NEAR)


def sharded_with_hooks():
    """FullyShardedDataParallel's own hooks, in formats of 16 bits too."""
    exact = trained("cpu", GLOO, None)
    whole, parts = ShardingStrategy.NO_SHARD, ShardingStrategy.FULL_SHARD
    for strategy, function, state, near in (
        (whole, sharded_hooks.allreduce_hook, sharded_hooks.DefaultState, NEAR),
        (whole, sharded_hooks.fp16_compress_hook, sharded_hooks.LowPrecisionState, 1e-3),
        (parts, sharded_hooks.reduce_scatter_hook, sharded_hooks.DefaultState, NEAR),
        (parts, sharded_hooks.bf16_compress_hook, sharded_hooks.LowPrecisionState, 1e-3),
    ):
        sharded = FullyShardedDataParallel(net(), device_id=RANK, sharding_strategy=strategy)
        sharded.register_comm_hook(state(dist.group.WORLD), function)
        trained(DEVICE, OURS, None, model=sharded)
        with FullyShardedDataParallel.summon_full_params(sharded):
            for mine, other in zip(sharded.parameters(), exact, strict=True):
                torch.testing.assert_close(mine.detach().cpu().view_as(other), other, rtol=0, atol=near)


def callbacks_may_ask_for_collectives():
    a, b, c = (on([float(RANK + k)] * 4) for k in range(3))

    def second(future):
        inner = dist.all_reduce(b, async_op=True).get_future()
        return inner.then(lambda f: [future.value()[0] + f.value()[0]]).wait()

    chained = dist.all_reduce(a, async_op=True).get_future().then(second)
    dist.all_reduce(c)
    assert chained.wait()[0].cpu().tolist() == [float(sum(2 * r + 1 for r in range(RANKS)))] * 4
    assert c.cpu().tolist() == [float(sum(r + 2 for r in range(RANKS)))] * 4
    d = on([1.0])
    both = torch.futures.collect_all([dist.all_reduce(on([1.0]), async_op=True).get_future() for _ in range(2)])
    both.then(lambda f: dist.all_reduce(d)).wait()
    assert d.item() == RANKS


def batch_norm_over_ranks():
    """The host has none over gloo: against one process with the whole batch."""
    shapes = {"1d": (8, 6), "2d": (8, 6, 3, 2), "channels last": (8, 6, 3, 2)}
    kinds = {"1d": nn.BatchNorm1d, "2d": nn.BatchNorm2d, "channels last": nn.BatchNorm2d}
    for name, shape in shapes.items():
        for options in ({}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}):
            torch.manual_seed(2)
            whole, weights = torch.randn(shape) * 3 + 1, torch.randn(shape)
            alone = nn.Sequential(
                nn.Conv2d(6, 6, 1) if len(shape) == 4 else nn.Linear(6, 6), kinds[name](6, **options)
            )
            model = copy.deepcopy(alone).to(DEVICE)
            model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))
            first, last = (0, 3) if RANK == 0 else (3, 8)  # ranks may have batches of different sizes
            for _ in range(2):
                y = alone(whole)
                (y * weights).sum().backward()
                x = whole[first:last].to(DEVICE)
                x = x.contiguous(memory_format=torch.channels_last) if name == "channels last" else x
                mine = model(x)
                (mine * weights[first:last].to(DEVICE)).sum().mul(RANKS).backward()
                torch.testing.assert_close(mine.detach().cpu(), y[first:last].detach(), rtol=0, atol=1e-5)
            for p, q in zip(model.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=2e-4)
            for p, q in zip(model.buffers(), alone.buffers(), strict=True):
                torch.testing.assert_close(p.cpu(), q, rtol=1e-5, atol=1e-5)
            if not options.get("track_running_stats", True):
                continue
            model.eval(), alone.eval()
            torch.testing.assert_close(model(x).detach().cpu(), alone(whole)[first:last].detach(), rtol=0, atol=1e-5)


def fully_sharded():
    expected = trained("cpu", GLOO, None)
    for device_id in (torch.device("neuron"), torch.device("neuron", RANK), RANK, None):
        for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
            model = net() if device_id is not None else net().to(DEVICE)
            sharded = FullyShardedDataParallel(model, device_id=device_id, sharding_strategy=strategy)
            trained(DEVICE, OURS, None, model=sharded)
            with FullyShardedDataParallel.summon_full_params(sharded):
                for mine, other in zip(sharded.parameters(), expected, strict=True):
                    torch.testing.assert_close(mine.detach().cpu().view_as(other), other, rtol=0, atol=NEAR)


def fully_sharded_and_offloaded():
    """Parameters that lie on the host between the passes, and those that are fp16 in them, learn the same."""
    expected = trained("cpu", GLOO, None)
    half = MixedPrecision(*[torch.float16] * 3)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        for offloaded, mixed in ((True, None), (True, half), (False, half)):
            sharded = FullyShardedDataParallel(
                net(),
                device_id=RANK,
                sharding_strategy=strategy,
                cpu_offload=CPUOffload(offloaded),
                mixed_precision=mixed,
                use_orig_params=mixed is None,
            )
            trained(DEVICE, OURS, None, model=sharded)
            assert next(sharded.parameters()).device.type == ("cpu" if offloaded else DEVICE)
            with FullyShardedDataParallel.summon_full_params(sharded):
                whole = torch.cat([p.detach().cpu().flatten() for p in sharded.parameters()])
            learnt = torch.cat([p.flatten() for p in expected])
            torch.testing.assert_close(whole, learnt, rtol=0, atol=NEAR if mixed is None else 5e-4)


def whole_states_of_the_sharded():
    """On the host or on the device, for training that goes on and for parameters that were set meanwhile."""
    expected, further = trained("cpu", GLOO, None), trained("cpu", GLOO, None, steps=5)
    for original in (False, True):
        for offloaded in (True, False):
            sharded = FullyShardedDataParallel(net(), device_id=RANK, use_orig_params=original)
            optimizer = torch.optim.SGD(sharded.parameters(), 0.1, momentum=0.9)
            trained(DEVICE, OURS, lambda *_: optimizer, model=sharded)  # noqa: B023
            gradients = [None if p.grad is None else p.grad.tolist() for p in sharded.parameters()]
            kept = FullStateDictConfig(offload_to_cpu=offloaded), FullOptimStateDictConfig(offload_to_cpu=offloaded)
            with FullyShardedDataParallel.state_dict_type(sharded, StateDictType.FULL_STATE_DICT, *kept):
                state = sharded.state_dict()
                moments = FullyShardedDataParallel.optim_state_dict(sharded, optimizer)
            assert gradients == [None if p.grad is None else p.grad.tolist() for p in sharded.parameters()]
            for mine, other in zip(state.values(), expected, strict=True):
                assert mine.device.type == ("cpu" if offloaded else DEVICE)
                torch.testing.assert_close(mine.cpu(), other, rtol=0, atol=NEAR)
            assert sorted(moments["state"]) == sorted(state)
            trained(DEVICE, OURS, lambda *_: optimizer, model=sharded, steps=2)  # noqa: B023
            with FullyShardedDataParallel.summon_full_params(sharded, offload_to_cpu=offloaded):
                for mine, other in zip(sharded.parameters(), further, strict=True):
                    torch.testing.assert_close(mine.detach().cpu(), other, rtol=0, atol=NEAR)
                    mine.detach().fill_(RANK)
            with FullyShardedDataParallel.summon_full_params(sharded):
                set_to = torch.cat([p.detach().cpu().flatten() for p in sharded.parameters()])
                assert set(set_to.tolist()) == set(map(float, range(RANKS)))  # each rank set its own part


def sharded_tensors_lie_on_cores_by_number():
    for device, group in (("cpu", GLOO), (DEVICE, OURS)):
        places = [f"rank:{rank}/{'cpu' if device == 'cpu' else f'{device}:{rank}'}" for rank in range(RANKS)]
        spec = ChunkShardingSpec(dim=0, placements=places)
        made = sharded_tensor.full(spec, (5, 3), 1.0 + RANK, process_group=group)
        (part,) = made.local_shards()
        assert part.tensor.device.type == device
        assert [each.placement.rank() for each in made.metadata().shards_metadata] == list(range(RANKS))
        whole = torch.empty(5, 3, device=device) if RANK == 0 else None
        made.gather(0, whole)
        if RANK == 0:
            assert whole[:, 0].tolist() == [1.0] * 3 + [2.0] * 2
        where = ShardMetadata(shard_offsets=[4 * RANK, 0], shard_sizes=[4, 3], placement=places[RANK])
        part = sharded_tensor.Shard(torch.full((4, 3), 1.0 + RANK, device=device), where)
        joined = sharded_tensor.init_from_local_shards([part], (4 * RANKS, 3), process_group=group)
        assert joined.local_tensor().tolist() == [[1.0 + RANK] * 3] * 4


def parts_of_states_lie_where_they_shall():
    for offloads, place in ((False, DEVICE), (True, "cpu")):
        model = FullyShardedDataParallel(net().to(DEVICE), process_group=OURS, device_id=torch.device(DEVICE, RANK))
        with FullyShardedDataParallel.state_dict_type(
            model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=offloads)
        ):
            states = model.state_dict()
        for name, meant in net().state_dict().items():
            assert {part.tensor.device.type for part in states[name].local_shards()} == {place}
            whole = torch.empty(meant.shape, device=DEVICE) if RANK == 0 else None
            if not offloads:
                states[name].gather(0, whole)
                assert whole is None or torch.equal(whole.cpu(), meant)


report(
    [
        plain_hooks,
        hooks_that_pytorch_has_for_no_backend_of_the_host,
        power_sgd,
        local_sgd,
        overlapped_optimizers,
        zero_with_hooks,
        sharded_with_hooks,
        callbacks_may_ask_for_collectives,
        batch_norm_over_ranks,
        fully_sharded,
        fully_sharded_and_offloaded,
        whole_states_of_the_sharded,
        sharded_tensors_lie_on_cores_by_number,
        parts_of_states_lie_where_they_shall,
    ]
)
dist.destroy_process_group()
