# SPDX-License-Identifier: Apache-2.0
"""Of the unpublished `neuronxcc.nki._private_kernels`: names that libraries import where they may not call them."""
