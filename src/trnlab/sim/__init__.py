# SPDX-License-Identifier: Apache-2.0
"""The simulators: `functional` computes the numbers of a program, `timing` its time."""
