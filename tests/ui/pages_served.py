# SPDX-License-Identifier: Apache-2.0
"""A server of pages in a thread of the test, and what asks it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette", reason="needs trnlab[ui]")
pytest.importorskip("uvicorn", reason="needs trnlab[ui]")

from trnlab.cli.web import serving
from trnlab.cli.web.site import ServedSite

TOKEN = "a-token-of-a-test"


class Served:
    """Asks a server as a browser does, with its cookie unless told otherwise."""

    def __init__(self, site: ServedSite) -> None:
        self.site, self.url = site, f"http://127.0.0.1:{site.port}"
        self.entrance = f"{self.url}/?token={site.token}"

    def ask(self, path: str, method: str = "GET", *, cookie: bool = True, **headers: str) -> tuple[int, str, Any]:
        """Status, text and headers of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.site.port, timeout=60)
        sent = {"Cookie": f"{self.site.cookie}={self.site.token}"} if cookie else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, answer.headers

    def page(self, path: str, **asked: str) -> str:
        """The page of a view, which has to be there."""
        status, text, _ = self.ask(f"{path}?{urlencode(asked)}")
        assert status == 200, text
        return text

    def values(self, path: str, method: str = "GET", **asked: str) -> Any:
        """The plain values of a part."""
        status, text, _ = self.ask(f"{path}?{urlencode(asked)}", method)
        assert status == 200, text
        return json.loads(text)


@contextmanager
def serving_site(folder: Path, cache: Path) -> Iterator[Served]:
    """A server for a folder, until the test is over."""
    listener = serving.bound(0)
    site = ServedSite((folder.resolve(),), str(cache), TOKEN, listener.getsockname()[1])
    server = serving.server(site)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Served(site)
    finally:
        server.should_exit = True
        thread.join(30)
        site.close()
        listener.close()
