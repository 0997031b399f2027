# SPDX-License-Identifier: Apache-2.0
"""Data sets in stores: shards that are read by ranges, an order that can be entered anywhere, reading ahead."""

from trnlab.datasets.order import Order
from trnlab.datasets.reading import Counts, Reader
from trnlab.datasets.shards import Field, File, Shard, Shards
from trnlab.datasets.writing import index, write

__all__ = ["Counts", "Field", "File", "Order", "Reader", "Shard", "Shards", "index", "write"]
