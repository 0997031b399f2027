# SPDX-License-Identifier: Apache-2.0
"""The state of training as files: saved, loaded, resharded, replayed."""
