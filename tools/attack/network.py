# SPDX-License-Identifier: Apache-2.0
"""An object store behind a proxy that refuses, cuts and delays: a run goes on, a checkpoint is whole or named."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from unittest import mock

import numpy as np

from tools.attack import Outcome
from tools.attack.poison import RESULT, graph
from tools.storage.s3 import Proxy, environment, serving
from trnlab import chips
from trnlab.errors import RunError
from trnlab.runtime import device
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.session import Session
from trnlab.storage import open_store, remote
from trnlab.storage.checkpoints import Checkpoints

FAULTS = (503, 503, "cut", 403, 400, None)
PATIENCE_S = 0.6  # in place of a minute: what is looked at is what is done then


def proxies(inputs: int, seed: int) -> Outcome:
    """As the module says; a share of the requests, drawn for each input, meets a fault."""
    outcome = Outcome()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Both are read when a store is made or used.
    with serving() as proxy, mock.patch.dict(os.environ, environment(proxy)), _impatient():
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("attacked")
        for number in range(inputs):
            pick = random.Random(f"{seed} {number}")
            proxy.fault = _faults(pick)
            started = time.monotonic()
            try:
                _run(f"s3://attacked/{number}/cache")
                outcome.counts["runs"] += 1
                outcome.counts[_checkpoint(proxy, f"s3://attacked/{number}/kept", pick)] += 1
            except Exception as error:
                outcome.failures.append(f"input {number} of seed {seed}: {type(error).__name__} {str(error)[:200]}")
            if time.monotonic() - started > 120:
                outcome.failures.append(f"input {number} of seed {seed} took longer than two minutes")
    return outcome


def _impatient() -> mock._patch[float]:
    return mock.patch.object(remote, "PATIENCE_S", PATIENCE_S)


def _faults(pick: random.Random) -> Callable[[str, str], int | str | None]:
    share, kinds = pick.choice((0.05, 0.3, 0.9)), pick.sample(FAULTS, 2)
    return lambda method, path: pick.choice(kinds) if pick.random() < share else None


def _run(place: str) -> None:
    """Twice with one cache: the result is the same, whatever becomes of the cache."""
    for _ in range(2):
        cache = Cache(remote.RemoteStore(place, PATIENCE_S), lambda line: None)
        session = Session(chips.target("trn1.2xlarge"), "fp32", cache=cache)
        loaded = device.Loaded(device.compile_graph(graph(), session), session)
        (y,) = loaded.run([np.ones((64, 32), np.float32), np.full((32, 48), 2, np.float32)])
        assert (y == RESULT).all(), "the run computes something else"


def _checkpoint(proxy: Proxy, place: str, pick: random.Random) -> str:
    """Two checkpoints; what is read back, through faults and then without, is one of them, whole."""
    said, content = "checkpoints", {}
    for step in (1, 2):
        content[step] = {"state": pick.randbytes(3000), "more/of.it": pick.randbytes(10)}
        try:
            Checkpoints(remote.RemoteStore(place, PATIENCE_S)).save(step, content[step])
        except RunError:
            said = "checkpoints refused with a code"
    for calm in (False, True):
        if calm:
            proxy.fault = lambda method, path: None
        try:
            found = Checkpoints(open_store(place)).load_newest()
        except RunError:
            assert not calm, "what was written cannot be read without faults"
            continue
        if found is not None:
            step, files = found
            assert files == content[step], "a checkpoint is another"
    return said
