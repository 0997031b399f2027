# SPDX-License-Identifier: Apache-2.0
"""Who is answered by `trnlab ui`, and for how long."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages_served import TOKEN, Served, serving_site

from trnlab.cli import web
from trnlab.cli.listening import CONNECTIONS
from trnlab.cli.main import main
from trnlab.cli.web import serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_site(tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("cache")) as found:
        yield found


def test_without_the_token_nothing_is_shown(served: Served) -> None:
    for path in ("/", "/runs", "/assets/ui.js", "/run/part?run=x", "/nowhere", "/runs?token=wrong", "/?token=é"):
        status, text, _ = served.ask(path.replace("é", "%C3%A9"), cookie=False)
        assert (status, "TRN853" in text) == (403, True), path


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost:x", "[::1]", "0x7f.1"])
def test_other_names_of_this_host_are_refused(served: Served, host: str) -> None:
    assert served.ask("/runs", Host=host)[0] == 403


def test_the_address_with_the_token_is_left_for_one_without(served: Served) -> None:
    status, _, headers = served.ask(f"/runs?q=a&token={TOKEN}", cookie=False)
    assert (status, headers["location"]) == (303, "/runs?q=a")
    cookie = headers["set-cookie"]
    assert all(word in cookie.lower() for word in ("httponly", "samesite=strict", served.site.cookie))
    assert served.ask(f"//evil.example/?token={TOKEN}", cookie=False)[2]["location"].startswith("/evil.example")


def test_pages_ask_nothing_but_this_server_and_are_kept_nowhere(served: Served) -> None:
    headers = served.ask("/runs")[2]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe-inline" not in headers["content-security-policy"].partition("style-src")[0]
    assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "server" not in headers


def test_other_sites_press_no_buttons(served: Served) -> None:
    assert served.ask("/runs", "POST", Sec_Fetch_Site="cross-site")[0] == 403
    assert served.ask("/runs", "DELETE")[0] == 403


def test_half_a_request_is_cut_and_too_many_connections_are_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "IDLE_S", 0.5)
    place = ("127.0.0.1", served.site.port)
    began = time.monotonic()
    with socket.create_connection(place, timeout=20) as half:
        half.sendall(b"GET /runs HTTP/1.1\r\nHost: localhost\r\n")
        assert half.recv(100) == b""
    assert time.monotonic() - began < 15
    many = [socket.create_connection(place, timeout=20) for _ in range(4 * CONNECTIONS + 20)]
    time.sleep(1.5)
    for each in many:
        each.close()
    assert served.ask("/runs")[0] == 200


def test_an_address_that_is_too_long_is_refused(served: Served) -> None:
    status, text, _ = served.ask(f"/runs?q={'a' * 3000}")
    assert (status, "TRN855" in text) == (400, True)


def test_a_view_that_is_none_is_told(served: Served) -> None:
    status, text, _ = served.ask("/nowhere")
    assert (status, "TRN854" in text, "/runs" in text) == (404, True, True)


def test_a_folder_that_is_none_and_a_port_that_is_taken(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", str(tmp_path / "none")]) == 2
    assert "TRN851" in capsys.readouterr().err
    assert main(["ui", str(tmp_path), "--port", str(served.site.port)]) == 2
    assert "TRN852" in capsys.readouterr().err


def test_packages_that_are_missing_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trnlab.cli.web.serving", None)
    monkeypatch.delattr(web, "serving")
    assert main(["ui", str(tmp_path)]) == 2
    assert "pip install 'trnlab[ui]'" in capsys.readouterr().err
