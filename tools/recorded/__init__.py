# SPDX-License-Identifier: Apache-2.0
"""Drawn programs of PyTorch, unedited, whose operators are recorded, beside the CPU: `python -m tools.recorded`."""
