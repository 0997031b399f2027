# SPDX-License-Identifier: Apache-2.0
"""Ask autocomp's backend for Trainium about the reference of each test that is named, as a candidate of itself."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

from autocomp.backend.trn.trn_eval import TrnEvalBackend

for name in sys.argv[1:]:
    problem = SimpleNamespace(test_file=Path(name).resolve(), prob_type="", prob_id=0)
    code = Path(name).read_text().split("# SUBSTITUTE HERE")[1].split("def test_nki")[0]
    candidate = re.sub(r"\bdef ref\(", "def solution(", code)
    (found,) = TrnEvalBackend(parallel=False).evaluate_code(problem, [candidate], "")
    print(name, {key: found[key] for key in ("correct", "latency") if key in found}, flush=True)
