"""The web console at `/`: static files, which anybody may read, and facts about the caller.

The console has no rights beyond the caller's: it makes the calls that this table serves to all clients,
with the caller's credentials.
"""

from __future__ import annotations

from anabranch.rest.http_message import Request, Response
from anabranch.rest.router import Route
from anabranch.rest.static_files import StaticFiles
from anabranch.security.permissions import OPEN


def static_routes(files: StaticFiles, *, console: bool) -> list[Route]:
    """Without `console` only the files of `/docs` are of use; the page at `/` is not served."""

    async def index(request: Request) -> Response:
        return files.response(request, "index.html")

    async def file(request: Request) -> Response:
        return files.response(request, request.params["file"])

    shown = [Route("GET", "/", index, "The web console", OPEN)] if console else []
    return [
        *shown,
        Route("GET", "/console/{file}", file, "A file of the console or of the page at /docs", OPEN),
    ]
