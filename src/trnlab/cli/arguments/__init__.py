# SPDX-License-Identifier: Apache-2.0
"""The arguments of each command, by what the commands are about."""
