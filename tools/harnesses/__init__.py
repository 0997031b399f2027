# SPDX-License-Identifier: Apache-2.0
"""Harnesses of others, unmodified, under `trnlab run`: which of them pass, given a folder of their clones."""
