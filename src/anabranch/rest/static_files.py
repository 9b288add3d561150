"""Files of the web pages: package data, read when first asked for, with an ETag and compressed once.

A page may run its own scripts and styles only, and talk to its own origin only (Content-Security-Policy). Strings never
become markup (Trusted Types), so a topic named `<img …>` stays text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from anabranch.model.errors import NotFound
from anabranch.rest.encoding import accepts_gzip, compressed
from anabranch.rest.http_message import Request, Response

FOLDER = Path(__file__).parent / "console"
FOLDERS = (FOLDER, FOLDER / "pages", FOLDER / "vendor")  # names are unique over all, which a test checks
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    data: bytes
    packed: bytes
    kind: str
    tag: str


class StaticFiles:
    def __init__(self) -> None:
        self._paths: dict[str, Path] | None = None
        self._read: dict[str, StaticFile] = {}

    def response(self, request: Request, name: str) -> Response:
        """NotFound for all that is not one of the files."""
        one = self._file(name)
        headers = [
            ("ETag", one.tag),
            ("Cache-Control", "no-cache"),  # asked for again each time, answered 304
            ("Vary", "Accept-Encoding"),
            ("Content-Security-Policy", CSP),
            ("Cross-Origin-Opener-Policy", "same-origin"),
        ]
        if not accepts_gzip(request):
            return Response(200, one.data, one.kind, tuple(headers))
        return Response(200, one.packed, one.kind, (*headers, ("Content-Encoding", "gzip")))

    def _file(self, name: str) -> StaticFile:
        found = self._read.get(name)
        if found is None:
            path = self._known().get(name)
            if path is None:
                raise NotFound(f"the console has no file {name}")
            data = path.read_bytes()
            tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            found = self._read[name] = StaticFile(data, compressed(data, 9), TYPES[path.suffix], tag)
        return found

    def _known(self) -> dict[str, Path]:
        """The files by name. A name from a request is only looked up here, so it cannot leave the folder."""
        if self._paths is None:
            self._paths = {path.name: path for folder in FOLDERS for path in folder.iterdir() if path.suffix in TYPES}
        return self._paths
