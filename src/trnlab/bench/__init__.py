# SPDX-License-Identifier: Apache-2.0
"""Kernels against a reference, and against each other: are they right, how long they take, which is best.

What a candidate's code may do ends with its recording, which happens in a process in a view with limits
(`trnlab.view`): what comes out of it is a list of instructions, verified before it is believed. Inputs, the
reference, the execution and the clock are in processes that no candidate has code in, so that there is nothing that
one could patch, read or return to be taken for right.
"""
