# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.storage.s3 import Proxy, environment, serving
from trnlab.storage import Store, open_store


@pytest.fixture(scope="session")
def server() -> Iterator[Proxy]:
    pytest.importorskip("moto", reason="the extra `dev` has it")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with serving() as proxy:
        yield proxy


@pytest.fixture
def bucket(server: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket, with the environment that finds it."""
    import s3fs

    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    name = f"team-{uuid.uuid4().hex[:8]}"
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(name)
    server.log.clear()
    yield f"s3://{name}"
    server.fault = lambda method, path: None


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for files: a folder, the memory of this process, and S3."""
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/files"
    return str(tmp_path / "files") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)
