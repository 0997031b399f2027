# SPDX-License-Identifier: Apache-2.0
"""What the scripts of ranks share: checks by name, each after a fresh meeting of all ranks if it asks for one."""

import os
import traceback

import torch
import torch.distributed as dist

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = "neuron"


def meet(name, **options):
    dist.init_process_group(
        options.pop("backend", "neuron"),
        init_method=f"file://{os.environ['RENDEZVOUS']}-{name}",
        rank=RANK,
        world_size=RANKS,
        **options,
    )


def report(checks):
    """Run functions one after the other and say of each whether it held."""
    for check in checks:
        try:
            check()
        except BaseException:
            print(f"FAILED {check.__name__}\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        print(f"passed {check.__name__}", flush=True)


def on(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)
