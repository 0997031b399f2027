# SPDX-License-Identifier: Apache-2.0
"""`horovod.torch` over the backend `neuron` of `torch.distributed`.

    import trnlab.frontends.torch.horovod as hvd

Names, arguments and defaults are those of https://horovod.readthedocs.io/en/stable/api.html#module-horovod.torch.
"""

from torch.nn import SyncBatchNorm

from trnlab.frontends.torch.horovod import elastic
from trnlab.frontends.torch.horovod.calls import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)  # fmt: skip
from trnlab.frontends.torch.horovod.compression import Compression
from trnlab.frontends.torch.horovod.objects import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from trnlab.frontends.torch.horovod.optimizer import DistributedOptimizer
from trnlab.frontends.torch.horovod.ranks import (
    ProcessSet,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
)  # fmt: skip
from trnlab.frontends.torch.xla.names import refusing

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "Max", "Min", "ProcessSet", "Product", "Sum",
    "SyncBatchNorm", "add_process_set", "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_",
    "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_",
    "broadcast_async", "broadcast_async_", "broadcast_object", "broadcast_object_fn", "broadcast_optimizer_state",
    "broadcast_parameters", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "elastic",
    "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather", "grouped_allgather_async",
    "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_",
    "grouped_reducescatter", "grouped_reducescatter_async", "init", "is_homogeneous", "is_initialized", "join",
    "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll", "rank",
    "reducescatter", "reducescatter_async", "remove_process_set", "rocm_built", "shutdown", "size", "synchronize",
]  # fmt: skip
__getattr__ = refusing("horovod.torch", "there are its collectives, process sets and DistributedOptimizer")
