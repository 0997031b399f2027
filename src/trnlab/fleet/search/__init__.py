# SPDX-License-Identifier: Apache-2.0
"""Layouts of a training run over ranks, and the search for the fastest."""
