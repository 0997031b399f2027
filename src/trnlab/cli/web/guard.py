# SPDX-License-Identifier: Apache-2.0
"""Who is answered: requests to this host's own names, from who has opened the address with the token."""

from __future__ import annotations

import hmac
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trnlab.cli.listening import is_own_name
from trnlab.cli.web.shell import plain
from trnlab.cli.web.site import ServedSite

TOKEN = "token"  # in the address that is printed
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src "
    "'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class PageGuard:
    """Stands before the site. A browser shows the token once, and has a cookie from then on, which no script can read
    and no other site can send."""

    def __init__(self, app: ASGIApp, site: ServedSite) -> None:
        self._app, self._site = app, site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            return
        answer = self._judged(Request(scope))
        await (answer or self._app)(scope, receive, _guarded(send))

    def _judged(self, request: Request) -> Response | None:
        """None for who may go on."""
        if not is_own_name(request.headers.get("host", "")):
            return _refused("this page answers to 127.0.0.1 and localhost alone", "call it by one of these names")
        if request.method not in ("GET", "HEAD", "POST"):
            return _refused("this page is read with GET, and its buttons use POST", "use one of these")
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and request.method == "POST":
            return _refused("another page asked for this", "use the buttons of this page")
        if self._same(request.cookies.get(self._site.cookie, "")):
            return self._entered(request) if TOKEN in request.query_params else None
        if self._same(request.query_params.get(TOKEN, "")):
            return self._entered(request)
        return _refused(
            "this browser has not opened the address that `trnlab ui` printed, or it was started again since",
            "open the address with ?token= that it printed when it started; this one works from then on",
        )

    def _same(self, told: str) -> bool:
        return hmac.compare_digest(told.encode(), self._site.token.encode())

    def _entered(self, request: Request) -> Response:
        """To the same address without the token, so that none that is shared has it."""
        left = urlencode([pair for pair in parse_qsl(request.url.query) if pair[0] != TOKEN])
        path = "/" + request.url.path.lstrip("/")  # no other host's
        answer = RedirectResponse(f"{path}?{left}" if left else path, 303)
        if self._same(request.query_params.get(TOKEN, "")):
            answer.set_cookie(self._site.cookie, self._site.token, httponly=True, samesite="strict", path="/")
        return answer


def _refused(what: str, remedy: str) -> Response:
    return HTMLResponse(plain("TRN853", what, remedy), 403)


def _guarded(send: Send) -> Send:
    """With headers that let a page load and ask nothing but this server."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in known]
            if b"cache-control" not in known:
                more.append((b"cache-control", b"no-store"))
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return sending
