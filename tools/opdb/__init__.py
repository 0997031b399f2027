# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator tests against the device: `python -m tools.opdb`, or `make opdb`.

PyTorch ships a database of its operators (`op_db`) with sample inputs for each. This tool runs them on the compiled
program, on the graph's interpreter and in eager mode, forward and backward, and compares with PyTorch on the CPU.
"""
