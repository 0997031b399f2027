# SPDX-License-Identifier: Apache-2.0
"""libneuronxla.neuron_cc_cache: where the vendor's compiler would keep its files.

Trainers say so before they train, whatever comes of it: a place can be named and a cache made for it, of which
nothing can be asked. trnlab keeps compiled programs by itself, elsewhere.
"""

from __future__ import annotations

import os
from typing import Any

from trnlab.frontends.torch.xla.names import NoCounterpartError, refusing

_REMEDY = "trnlab keeps compiled programs itself: trnlab cache, and --cache"
_DEFAULT = "/var/tmp/neuron-compile-cache/"


class CacheUrl:
    """A place in a file system (`fs`) or on S3 (`s3`)."""

    def __init__(self, cache_url: str, url_type: str = "fs") -> None:
        self.url, self.url_type = cache_url, url_type

    def is_s3(self) -> bool:
        """Whether it is on S3."""
        return self.url_type == "s3"

    @staticmethod
    def get_cache_url(cache_dir: str | None = None) -> CacheUrl:
        """The folder that is given, or that the environment says (NEURON_COMPILE_CACHE_URL), or the vendor's."""
        where = cache_dir or os.environ.get("NEURON_COMPILE_CACHE_URL") or _DEFAULT
        return CacheUrl(where, "s3" if where.startswith("s3://") else "fs")


class CompileCache:
    """A cache at a place; files of the vendor's compiler are neither looked for nor written in it."""

    def __init__(self, cache_url: CacheUrl) -> None:
        self.cache_url, self.cache_path = cache_url, cache_url.url

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoCounterpartError(
            f"libneuronxla.neuron_cc_cache.{type(self).__name__}.{name} has no counterpart in trnlab", remedy=_REMEDY
        )


class CompileCacheFs(CompileCache):
    """In a folder."""


class CompileCacheS3(CompileCache):
    """On S3."""


def create_compile_cache(cache_url: CacheUrl) -> CompileCache:
    """The cache of a place."""
    return (CompileCacheS3 if cache_url.is_s3() else CompileCacheFs)(cache_url)


__getattr__ = refusing("libneuronxla.neuron_cc_cache", _REMEDY)
