# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's test cases list by vendors' names, with the backend `neuron` added: none has an entry for another.

DTensor's cases have a list of backends, in which one for any device stands beside gloo only; FSDP's have a device, a
backend and a number of devices, and compare autocast's default format with models in fp16, as is CUDA's; those made
for each device type name the vendors' own; and decorators skip where accelerators of three vendors are too few, or
none of their libraries is there. All of this is done before a file of tests is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

BACKEND = "neuron"
TO_ALL = "cpu:gloo,neuron:neuron"


def admit(ranks: int) -> None:
    """Let the test cases of the installed PyTorch run on `ranks` neuron devices."""
    _devices(ranks)
    _cases_of_c10d(ranks)
    _cases_of_dtensor(ranks)
    _cases_of_sharded_tensors()
    _cases_of_fsdp(ranks)
    _cases_for_device_types()


def _devices(ranks: int) -> None:
    """As many devices as ranks, each of which sees its own. Some tests ask CUDA for them."""
    import torch

    neuron: Any = torch.get_device_module(BACKEND)
    neuron.device_count = torch.accelerator.device_count = torch.cuda.device_count = lambda: ranks
    torch.cuda.set_device = lambda device: None
    torch.cuda.can_device_access_peer = lambda device, other: False


def _cases_of_c10d(ranks: int) -> None:
    from torch.testing._internal import common_distributed as common

    common.at_least_x_gpu = lambda x: ranks >= x
    common.skip_if_lt_x_gpu = lambda x, **_: _needing(x, ranks)
    common.requires_accelerator_dist_backend = lambda backends=None: lambda test: test
    common.HAS_ACCELERATOR = True
    common.DDP_RANK_DEVICES = [*common.DDP_RANK_DEVICES, BACKEND]
    former = common.DistributedTestBase.backend
    common.DistributedTestBase.backend = lambda self, device: (
        BACKEND if BACKEND in str(device) else former(self, device)
    )


def _needing(devices: int, ranks: int) -> Callable[[Any], Any]:
    """A decorator: the test is skipped where there are fewer ranks, and says so."""
    from torch.testing._internal import common_distributed as common

    def decorated(test: Any) -> Any:
        @wraps(test)
        def called(*args: Any, **kwargs: Any) -> Any:
            if ranks < devices:
                raise common.unittest.SkipTest(f"wants {devices} devices")
            return test(*args, **kwargs)

        return called

    return decorated


def _cases_of_dtensor(ranks: int) -> None:
    from torch.testing._internal.distributed._tensor import common_dtensor

    backend = property(lambda self: TO_ALL if self.device_type == BACKEND else "gloo")
    common_dtensor.DTensorTestBase.backend = backend  # type: ignore[assignment]
    common_dtensor.NUM_DEVICES = min(4, ranks)
    common_dtensor.DEVICE_COUNT = ranks


def _cases_of_sharded_tensors() -> None:
    """The base class knows five backends, and starts the group of none but those."""
    import torch.distributed as dist
    from torch.testing._internal.distributed._shard.sharded_tensor import ShardedTensorTestBase

    former = ShardedTensorTestBase.init_pg

    def init_pg(self: Any, backend: str = "nccl") -> None:
        if backend != BACKEND:
            former(self, backend)
            return
        meet = f"file://{self.file_name}"
        dist.init_process_group(BACKEND, world_size=self.world_size, rank=self.rank, init_method=meet)

    ShardedTensorTestBase.init_pg = init_pg


def _cases_of_fsdp(ranks: int) -> None:
    import torch
    from torch.testing._internal import common_fsdp

    common_fsdp.DEVICE_TYPE, common_fsdp.DISTRIBUTED_BACKEND = BACKEND, BACKEND
    common_fsdp.DEVICE_COUNT = common_fsdp.FSDPTestContinuous.world_size = ranks
    torch.set_autocast_dtype(BACKEND, torch.float16)


def _cases_for_device_types() -> None:
    from torch.testing._internal import common_device_type as common

    former = common.instantiate_device_type_tests

    @wraps(former)
    def instantiated(cls: Any, scope: Any, except_for: Any = None, only_for: Any = None, **named: Any) -> None:
        """Where it is for some device types only, for this one."""
        former(cls, scope, except_for, (BACKEND,) if only_for and only_for != "cpu" else only_for, **named)

    common.instantiate_device_type_tests = instantiated
