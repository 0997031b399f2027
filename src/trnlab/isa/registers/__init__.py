# SPDX-License-Identifier: Apache-2.0
"""Registers of the sequencers."""
