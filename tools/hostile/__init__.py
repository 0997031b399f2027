# SPDX-License-Identifier: Apache-2.0
"""Operators on hostile values, shapes and layouts, drawn, beside PyTorch on the CPU: `python -m tools.hostile`."""
