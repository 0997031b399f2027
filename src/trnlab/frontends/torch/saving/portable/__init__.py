# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in other layouts and formats: DCP folders, the vendor's library, Hugging Face."""
