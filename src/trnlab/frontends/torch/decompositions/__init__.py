# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch in terms of others that have a lowering."""
