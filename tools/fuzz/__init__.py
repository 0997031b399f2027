# SPDX-License-Identifier: Apache-2.0
"""Fuzzing of everything in trnlab that reads what somebody else may have written."""
