# SPDX-License-Identifier: Apache-2.0
"""What a run's summary says beyond its times: bounds, usage, traffic, advice and remedies."""
