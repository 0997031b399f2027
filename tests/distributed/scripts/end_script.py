# SPDX-License-Identifier: Apache-2.0
"""One rank ends, in the way that the argument names, while the other one waits for it."""

import os
import signal
import sys

import torch.distributed as dist
from together import RANK, meet, on

ENDING = int(sys.argv[2])

meet(sys.argv[1])
dist.all_reduce(on([1.0]))
if RANK == ENDING:
    if sys.argv[1] == "raises":
        raise ValueError("a bad batch")
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit
dist.all_reduce(on([2.0]))
