# SPDX-License-Identifier: Apache-2.0
"""The addresses of `trnlab ui`, and which view each of them is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from trnlab.cli.web import (
    bakeoff_view,
    chips_view,
    compare_view,
    goodput_view,
    instructions_view,
    kernels_view,
    plan_view,
    runs_view,
    serve_plan_view,
    stores_view,
    timeline_view,
    tune_view,
)
from trnlab.cli.web.guard import PageGuard
from trnlab.cli.web.shell import View, page, trouble
from trnlab.cli.web.site import ServedSite
from trnlab.documents.html import STYLE
from trnlab.errors import TrnlabError, UsageError
from trnlab.files import why
from trnlab.fleet.report.document import SCRIPT as PLAN_SCRIPT
from trnlab.profile.pages.page import SCRIPTS

Asked = Mapping[str, str]
LONGEST = 2000  # characters of a parameter
MakesView = Callable[[ServedSite, Asked], View]
MakesPart = Callable[[ServedSite, Asked], Mapping[str, object]]  # plain values
QUESTIONS = tuple(
    module.VIEW for module in (plan_view, serve_plan_view, bakeoff_view, goodput_view, kernels_view, tune_view)
)
VIEWS: Mapping[str, MakesView] = {
    "/runs": runs_view.runs,
    "/run": runs_view.run,
    "/timeline": timeline_view.timeline,
    "/compare": compare_view.compare,
    **{question.path: question.view for question in QUESTIONS},
    "/cache": stores_view.cache,
    "/checkpoints": stores_view.checkpoints,
    "/chips": chips_view.chips,
    "/instructions": instructions_view.instructions,
}
# parts of views that a script of theirs asks for again and again
PARTS: Mapping[str, MakesPart] = {
    "/runs/part": runs_view.runs_part,
    "/run/part": runs_view.run_part,
    **{f"{question.path}/part": question.part for question in QUESTIONS if not question.pressed},
}
# what buttons do
ACTS: Mapping[str, MakesPart] = {
    **{f"{question.path}/part": question.part for question in QUESTIONS if question.pressed},
    **{f"{question.path}/cancel": question.cancel for question in QUESTIONS},
}
_OWN = files(__package__).joinpath("assets")
_KINDS = {"css": "text/css", "js": "text/javascript"}


def made(site: ServedSite) -> PageGuard:
    """All of it, guarded."""
    assets = {file.name: file for file in (STYLE, PLAN_SCRIPT, *SCRIPTS, *_OWN.iterdir())}
    routes = [
        Route("/", lambda request: RedirectResponse("/runs")),
        Route("/assets/{name}", _asset(assets)),
        *(Route(path, _view(site, view)) for path, view in VIEWS.items()),
        *(Route(path, _part(site, part)) for path, part in PARTS.items()),
        *(Route(path, _part(site, act), methods=["POST"]) for path, act in ACTS.items()),
    ]
    return PageGuard(Starlette(routes=routes, exception_handlers={404: _nowhere}), site)


def _asset(assets: Mapping[str, Traversable]) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        file = assets.get(request.path_params["name"])
        if file is None:
            return Response(status_code=404)
        kind = _KINDS[file.name.rpartition(".")[2]]
        return Response(file.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})

    return answer


def _view(site: ServedSite, view: MakesView) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        found = await run_in_threadpool(_shown, site, view, dict(request.query_params))
        return HTMLResponse(page(found), found.status)

    return answer


def _shown(site: ServedSite, view: MakesView, asked: Asked) -> View:
    """A view, or in its place what is wrong."""
    try:
        return view(site, checked(asked))
    except TrnlabError as error:
        return View(error.code, trouble(error), status=404 if error.code in ("TRN101", "TRN125", "TRN854") else 400)
    except OSError as error:
        told = UsageError(why(error), code="TRN100", got=error.filename)
        return View(told.code, trouble(told), status=500)


def _part(
    site: ServedSite, part: Callable[[ServedSite, Asked], Mapping[str, object]]
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(part, site, checked(dict(request.query_params))))
        except TrnlabError as error:
            return JSONResponse({"html": trouble(error), "over": True})

    return answer


def checked(asked: Asked) -> Asked:
    """The parameters of an address. Raises UsageError (TRN855) for one that nobody would write."""
    for name, value in asked.items():
        if len(value) > LONGEST:
            raise UsageError(
                f"{name[:40]!r} of the address is too long",
                code="TRN855",
                got=f"{len(value):,} characters",
                limit=f"{LONGEST:,}",
                remedy="use the form of the view",
            )
    return {name: value.strip() for name, value in asked.items()}


def _nowhere(request: Request, error: Exception) -> Response:
    told = UsageError(
        "there is no such view",
        code="TRN854",
        got=request.url.path,
        limit=", ".join(VIEWS),
        remedy="choose one above",
    )
    return HTMLResponse(page(View("TRN854", trouble(told))), 404)
