# SPDX-License-Identifier: Apache-2.0
"""Serving a language model: its programs, what they cost, a queue before them, and how many instances that takes."""
