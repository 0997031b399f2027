# SPDX-License-Identifier: Apache-2.0
"""Files that many machines share: folders and object stores behind one interface, and leases in them."""

from trnlab.storage.lease import Lease
from trnlab.storage.opening import is_url, open_store
from trnlab.storage.store import Item, Store, StoreUsage

__all__ = ["Item", "Lease", "Store", "StoreUsage", "is_url", "open_store"]
