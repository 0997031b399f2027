# SPDX-License-Identifier: Apache-2.0
"""Mistakes of scripts that both ranks live to tell of: each prints the error that it led to."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from together import DEVICE, RANK, meet, on

from trnlab.errors import TrnlabError


def order():
    dist.all_reduce(on([1.0])) if RANK == 0 else dist.broadcast(on([1.0]), 0)


def size():
    dist.all_reduce(torch.ones(4 + RANK, device=DEVICE))


def dtype():
    dist.all_reduce(on([1.0], torch.bfloat16 if RANK else torch.float32))


def reduction():
    dist.all_reduce(on([1.0]), dist.ReduceOp.MAX if RANK else dist.ReduceOp.SUM)


def root():
    dist.broadcast(on([1.0]), RANK)


def transfer_size():
    dist.send(torch.ones(4, device=DEVICE), 1) if RANK == 0 else dist.recv(torch.ones(7, device=DEVICE), 0)


def splits():
    dist.all_to_all_single(torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE), [1, 2], [1, 2])


def two_sends():
    dist.send(on([1.0]), 1 - RANK)
    dist.recv(on([1.0]), 1 - RANK)


def crossed_groups():
    groups = [None, dist.new_group([0, 1])]
    for group in groups if RANK == 0 else reversed(groups):
        dist.all_reduce(on([1.0]), group=group)


def too_few_tensors():
    dist.all_gather([torch.ones(3, device=DEVICE)], torch.ones(3, device=DEVICE))


def no_such_reduction():
    dist.all_reduce(on([1.0]), dist.ReduceOp.BAND)


def a_group_with_little_time():
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
    if RANK == 0:
        dist.barrier(group)
    time.sleep(2.5)  # which all ranks may do in other groups
    dist.all_reduce(on([1.0]))


def leaves():
    if RANK == 0:
        dist.all_reduce(on([1.0]))
    raise SystemExit


def late_is_no_mistake():
    time.sleep(3.0 * RANK)
    dist.all_reduce(mine := on([1.0]))
    assert mine.item() == 2


CASES = [
    late_is_no_mistake,
    order,
    size,
    dtype,
    reduction,
    root,
    transfer_size,
    splits,
    two_sends,
    crossed_groups,
    too_few_tensors,
    no_such_reduction,
    a_group_with_little_time,
    leaves,
]
for case in CASES:
    meet(case.__name__)
    started = time.monotonic()
    try:
        case()
        print(f"== {case.__name__}: nothing", flush=True)
    except TrnlabError as error:
        print(f"== {case.__name__}: after {time.monotonic() - started:.1f} s\n{error}", flush=True)
    except SystemExit:
        print(f"== {case.__name__}: left", flush=True)
    dist.destroy_process_group()
