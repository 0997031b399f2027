# SPDX-License-Identifier: Apache-2.0
"""The model of time against real chips: kernels timed from their own sources, the network, training runs, the
planner; and what was measured and is not covered.

print(documents.text(sources.document(sources.recorded())))
"""
