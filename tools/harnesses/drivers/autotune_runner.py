# SPDX-License-Identifier: Apache-2.0
"""Import the runner of nki-autotune, which benchmarks kernels."""

import autotune.runner.api  # noqa: F401

print("runner imported")
