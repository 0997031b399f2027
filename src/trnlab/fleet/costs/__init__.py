# SPDX-License-Identifier: Apache-2.0
"""What a rank's programs and its collectives take, compiled and timed once."""
