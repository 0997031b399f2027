# SPDX-License-Identifier: Apache-2.0
"""Ask AccelOpt's evaluation about kernels of NKIBench, as its README does: the names of problems."""

import json
import sys
from pathlib import Path

from accelopt.kernel_wrapper import NKIKernel

fields = json.loads(Path("prompts/profile_list.json").read_text())
for problem in sys.argv[1:]:
    kernel = Path(f"NKIBench/kernels/{problem}_0.py")
    (reference, *_) = Path("NKIBench/reference").glob(f"{problem}_numpy_*.py")
    found = NKIKernel(str(kernel), str(reference))
    found.profile(fields)
    print(problem, found.res, flush=True)
