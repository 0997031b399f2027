# SPDX-License-Identifier: Apache-2.0
"""Transfers between HBM and SBUF, and what is computed on the way."""
