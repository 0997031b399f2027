# SPDX-License-Identifier: Apache-2.0
"""An S3 of one's own: moto's server in a thread, behind a proxy that can misbehave."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REFUSAL = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code} of the test</Message></Error>'
Fault = Callable[[str, str], "int | str | None"]  # of a method and path: a status to answer, "cut", or nothing


class Proxy(ThreadingHTTPServer):
    """Passes requests on to the server at `port`; `fault` says which are refused, and `log` lists them all."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.log = port, list[tuple[str, str]]()
        self.fault: Fault = lambda method, path: None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits for 40 ms, the reader's patience before it acknowledges
    server: Proxy

    def _pass(self) -> None:
        content = self._content()
        self.server.log.append((self.command, self.path))
        fault = self.server.fault(self.command, self.path)
        if isinstance(fault, int):
            code = {503: "SlowDown", 403: "AccessDenied", 400: "ExpiredToken"}[fault]
            self._answer(fault, {"Content-Type": "application/xml"}, REFUSAL.format(code=code).encode())
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        connection.request(self.command, self.path, content, dict(self.headers))
        answer = connection.getresponse()
        body = answer.read()
        headers = {k: v for k, v in answer.getheaders() if k.lower() not in ("transfer-encoding", "connection")}
        if fault == "cut":  # the answer promises more than it brings
            self.send_response(answer.status)
            for name, value in {**headers, "Content-Length": str(len(body) + 1)}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self._answer(answer.status, headers, body)
        connection.close()

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass  # noqa: N815

    def _content(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        del self.headers["Transfer-Encoding"]
        return b"".join(parts)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        length = headers.get("Content-Length", str(len(body))) if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Proxy]:
    """A proxy in front of an empty S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    proxy = Proxy(port)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        server.stop()


def environment(proxy: Proxy) -> dict[str, str]:
    """What finds it: the usual variables."""
    return {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }
