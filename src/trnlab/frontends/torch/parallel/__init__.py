# SPDX-License-Identifier: Apache-2.0
"""Data, sharded and context parallelism in captured steps, and agreement between ranks."""
