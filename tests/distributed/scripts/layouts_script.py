# SPDX-License-Identifier: Apache-2.0
"""Layouts beyond data and tensor parallel. One process per rank makes all checks, since starting takes longer."""

import sys

import torch.distributed as dist
from together import meet, report

names = sys.argv[1:]
meet("layouts")
checks = []
for name in names:
    checks += __import__(f"{name}_checks").CHECKS
report(checks)
dist.destroy_process_group()
