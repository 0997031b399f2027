# SPDX-License-Identifier: Apache-2.0
"""`trnlab ui`: who has no token, other names of this host, paths in addresses, markup, slow clients, floods.

The folder that is served has runs, kernels and benches whose names and contents are markup; beside it lies a file
that nobody is shown. Each input is one thing that somebody tries; the next one who asks properly is answered. What is
shown has no script but the server's own, no address that runs anything, and nothing of the file.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import random
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock
from urllib.parse import quote, urlencode

from tools.attack import Outcome
from tools.attack.ports import HOSTS, REQUESTS
from trnlab.cli.web import serving
from trnlab.cli.web.app import ACTS, PARTS, VIEWS
from trnlab.cli.web.guard import TOKEN
from trnlab.cli.web.site import ServedSite
from trnlab.profile.data import FILE, SCHEMA, VERSION

SECRET = "nobody-is-shown-this"
NAMES = (
    "<script>alert(1)<%2fscript>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "<!--",
    "&lt;b&gt;",
    "{{7*7}}",
    "</title><script>alert(1)",
    "a\nb\r\nset-cookie: x=y",
    "\x1b[2J",
    "\u202egnp.exe",
)
PATHS = ("../outside.py", "/etc/passwd", "..%2f..%2foutside.py", "file:///etc/passwd", "....//outside.py", "\0", "~")
PARAMETERS = (
    *("run", "first", "second", "q", "sort", "page", "model", "target", "tokens", "kernel", "reference", "inputs"),
    *("show", "param", "key", "place", "chip", "name", "chips", "store", "a", "b", "price", "stack", "beside"),
)
SLOWEST_S = 60  # until the next one is answered


def pages(inputs: int, seed: int) -> Outcome:
    """As the module says."""
    outcome, said = Outcome(), io.StringIO()
    with contextlib.redirect_stderr(said), mock.patch.object(serving, "IDLE_S", 0.3), _served() as site:
        for number in range(inputs):
            pick = random.Random(f"{seed} {number}")
            name, tried = pick.choice([*_TRIED.items()])
            try:
                tried(site, pick)
                _answers(site)
            except (AssertionError, OSError, http.client.HTTPException) as error:
                outcome.failures.append(
                    f"input {number} of seed {seed}, {name}: {type(error).__name__} {error}"[:400]
                )
            outcome.counts[name] += 1
    if "Traceback" in said.getvalue():
        outcome.failures.append(f"a traceback is written: {said.getvalue()[-300:]}")
    return outcome


@contextlib.contextmanager
def _served() -> Iterator[ServedSite]:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "site")
        _filled(root)
        Path(place, "outside.py").write_text(f"import nki  # {SECRET}\n")
        listener = serving.bound(0)
        site = ServedSite((root.resolve(),), str(root / "cache"), "the-token", listener.getsockname()[1])
        server = serving.server(site)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield site
        finally:
            server.should_exit = True
            thread.join(30)
            site.close()
            listener.close()


def _filled(root: Path) -> None:
    """Runs, a bench and kernels, with markup wherever a name may be."""
    for number, name in enumerate(NAMES):
        folder = root / "runs" / f"{number}-{name}".replace("/", "%2f").replace("\0", "")
        folder.mkdir(parents=True)
        (folder / FILE).write_text(json.dumps(_summary(name)))
        kernel = f"{number}-{name}.py".replace("/", "%2f")
        (root / kernel).write_text(f"import nki  # {name!r}\n")
    (root / "linked.py").symlink_to(root.parent / "outside.py")
    bench = {"name": NAMES[1], "verdict": NAMES[0], "time_ps": 1, "remarks": list(NAMES)}
    (root / "bench.json").write_text(json.dumps({"reference": NAMES[1], "candidates": [bench]}))


def _summary(name: str) -> dict[str, object]:
    """Of a run that goes on, as far as a summary's texts may be anything."""
    return {
        **{
            "schema": SCHEMA,
            "version": VERSION,
            "trnlab": name,
            "name": name,
            "status": "running",
            "complete": False,
        },
        **{"script": name, "arguments": [name], "started": name, "wall_s": 1.0, "step_wall_s": [0.5, 0.2, 0.2]},
        **{"target": name, "chip": "trn1", "precision": name, "stochastic_rounding": False, "seed": 0, "steps": 3},
        **{"loss": [4.0, 3.0, 2.5], "reference_loss": [], "reference_loss_gap": None, "instructions": 1},
        **{"host_fallback_ops": {"setup": 0, "training": 0}, "host_fallbacks": {"setup": {name: 1}, "training": {}}},
        **{"steps_found_by": "report", "compile": {"seconds": 2.5, "cache": "miss", "executables": 1}},
    }


def _ask(site: ServedSite, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Status and text, asked as a browser that has opened the address, unless headers say otherwise."""
    sent = {"Cookie": f"{site.cookie}={site.token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=SLOWEST_S)
    try:
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        assert not answer.headers.get("set-cookie", "").startswith("x="), "a header is an address's"
        return answer.status, text
    finally:
        connection.close()


def _answers(site: ServedSite) -> None:
    """The next one who asks properly is answered, when those before are cut off."""
    until = time.monotonic() + SLOWEST_S
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _ask(site, "/runs")[0] == 200:
                return
        assert time.monotonic() < until, "the next one is not answered"
        time.sleep(0.05)


def _without_token(site: ServedSite, pick: random.Random) -> None:
    wrong = pick.choice(
        ["", "the-toke", "the-token2", "é", site.token.upper(), " the-token ", "the-token\t;", "\x00"]
    )
    path = pick.choice([*VIEWS, *PARTS, "/assets/ui.js", "/", "/nowhere"])
    cookie = pick.choice([f"{site.cookie}={quote(wrong)}", f"other={site.token}", "", f"{site.cookie}"])
    query = pick.choice(["", f"?{TOKEN}={quote(wrong)}", f"?{TOKEN}={TOKEN}", f"?{TOKEN.upper()}={site.token}"])
    status, text = _ask(site, path + query, pick.choice(("GET", "POST", "HEAD", "PUT", "OPTIONS")), Cookie=cookie)
    assert status == 403, f"{status} for {path}{query} with {cookie!r}"
    assert "<nav" not in text, "a view is shown"


def _other_host(site: ServedSite, pick: random.Random) -> None:
    host = pick.choice([name for name in HOSTS if "\0" not in name])
    status, text = _ask(site, pick.choice([*VIEWS]), Host=host)
    assert status in (400, 403), f"{status} as {host!r}"
    assert "<nav" not in text, "a view is shown"


def _other_page(site: ServedSite, pick: random.Random) -> None:
    """A page of somewhere presses a button."""
    of = pick.choice(("cross-site", "same-site", "x"))
    status, _ = _ask(site, f"{pick.choice([*ACTS])}?kernel=0.py", "POST", Sec_Fetch_Site=of)
    assert status == 403, f"{status} for a button that is pressed {of}"


def _paths(site: ServedSite, pick: random.Random) -> None:
    path = pick.choice(PATHS)
    if pick.random() < 0.3:
        asked = "/assets/" + pick.choice((quote(path, ""), quote(path), "%2e%2e%2f%2e%2e%2foutside.py", "linked.py"))
        status, text = _ask(site, asked)
        assert status in (400, 404), f"{status} for {asked}"
    else:
        view = pick.choice([*VIEWS])
        asked = urlencode({pick.choice(PARAMETERS): pick.choice((path, "linked.py")), "show": "timeline"})
        status, text = _ask(site, f"{view}?{asked}")
        assert status < 500, f"{status} for {view}?{asked}"
    assert SECRET not in text, f"the file is shown for {asked}"
    assert "root:x:" not in text, f"a file of this machine is shown for {asked}"


def _markup(site: ServedSite, pick: random.Random) -> None:
    view = pick.choice([*VIEWS])
    asked = {name: pick.choice(NAMES) for name in pick.sample(PARAMETERS, 3)} if pick.random() < 0.7 else {}
    status, text = _ask(site, f"{view}?{urlencode(asked)}")
    assert status < 500, f"{status} for {view} {asked}"
    _look(text)


def _run(site: ServedSite, pick: random.Random) -> None:
    """The view of a run whose folder has such a name, as the list leads to it."""
    links = re.findall(r'href="(/run\?run=[^"]+)"', _ask(site, "/runs")[1])
    assert len(links) == len(NAMES), f"{len(links)} runs are listed"
    status, text = _ask(site, pick.choice(links).replace("&amp;", "&").replace("/run?", pick.choice(_OF_RUNS)))
    assert status < 500, f"{status} for a run"
    _look(text)


def _slow(site: ServedSite, pick: random.Random) -> None:
    """Many connections, each with half of a request or with what is none."""
    left = []
    for _ in range(pick.choice((1, 20, 2 * serving.MOST))):
        with contextlib.suppress(OSError):
            client = socket.create_connection(("127.0.0.1", site.port), timeout=30)
            left.append(client)
            client.sendall(pick.choice(REQUESTS))
    try:
        if pick.random() < 0.5:
            _answers(site)  # while they still hold theirs
    finally:
        for client in left:
            client.close()


def _odd(site: ServedSite, pick: random.Random) -> None:
    """Parameters that nobody would write."""
    value = pick.choice(
        ("x" * 3000, "9" * 400, "-1", "nan", "1e999", "\0", "%", "--cache=/etc", "-h", "[]", "💥" * 500)
    )
    view = pick.choice([*VIEWS, *(part for part in PARTS)])
    asked = dict.fromkeys(pick.sample(PARAMETERS, 4), value)
    status, text = _ask(site, f"{view}?{urlencode(asked)}")
    assert status < 500, f"{status} for {view} {asked}"
    if view in VIEWS:
        _look(text)


class _Scripts(HTMLParser):
    """Says what of a page would run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        told = dict(attrs)
        data = told.get("type") in ("application/json", "text/plain")
        if tag == "script" and not data and not (told.get("src") or "").startswith("/assets/"):
            self.found.append(f"<script {told}>")
        if tag in ("iframe", "object", "embed", "base", "img"):
            self.found.append(f"<{tag}>")
        self.found += [f"{name} of <{tag}>" for name in told if name.startswith("on")]
        self.found += [f"{name}={value}" for name, value in attrs if "script:" in (value or "") and name in _LINKS]


_LINKS = ("href", "src", "action", "formaction")
_OF_RUNS = ("/run?", "/timeline?", "/run/part?")


def _look(text: str) -> None:
    scripts = _Scripts()
    scripts.feed(text)
    assert not scripts.found, f"it would run: {scripts.found[:3]}"
    assert SECRET not in text, "the file is shown"


_TRIED = {
    "without the token": _without_token,
    "other names of this host": _other_host,
    "buttons of other pages": _other_page,
    "paths in addresses": _paths,
    "markup in addresses": _markup,
    "runs with markup": _run,
    "slow clients and floods": _slow,
    "odd parameters": _odd,
}
