# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the simulated chip."""
