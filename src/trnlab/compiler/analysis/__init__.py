# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph's values: ranges, roles, strided views; and the rules that may serve an op."""
