# SPDX-License-Identifier: Apache-2.0
"""Scripts that were written for graphics cards: the chip answers where they ask for CUDA.

On an instance nobody does, and such a script takes the CPU, or fails: what runs here in its place is what it will be
once its lines say "neuron". `trnlab check` lists those lines (TRN283), and TRNLAB_CUDA=none is as on an instance.
"""
