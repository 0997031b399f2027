# SPDX-License-Identifier: Apache-2.0
"""The model of time against real chips: measurements as data, the kernels that were measured, the errors.

results = validate()
print(report(results))
"""

from trnlab.validation.anchors import Anchor, Measurement, Split, load
from trnlab.validation.compare import Result, validate
from trnlab.validation.report import report, to_json

__all__ = ["Anchor", "Measurement", "Result", "Split", "load", "report", "to_json", "validate"]
