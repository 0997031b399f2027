# SPDX-License-Identifier: Apache-2.0
"""Failures, checkpoints and restarts, and the goodput that they leave."""
