# SPDX-License-Identifier: Apache-2.0
"""Where a script is followed that is to change nothing: a process whose writes land in a layer that goes with it.

`followed.follow` runs a function in such a process and returns its result with the effects that the code had there.
Two protections, see ADR 86: namespaces of Linux with overlays over all file systems (`namespaces`, `changes`), and,
where these cannot be had, replaced functions of Python with an audit hook behind them (`scratch`).
"""
