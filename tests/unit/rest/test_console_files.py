"""The files of the web console: vendored libraries, routes, imports, commands, and what no page may contain."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import cast

import pytest

from anabranch.broker.admin.service import BrokerAdmin
from anabranch.cli.main import main
from anabranch.model.errors import NotFound
from anabranch.rest.http_message import Request
from anabranch.rest.openapi.document import shown_path
from anabranch.rest.routes.table import make_router
from anabranch.rest.static_files import CSP, FOLDER, FOLDERS, StaticFiles
from scripts.vendor_console import LIBRARIES, with_relative_imports
from tests.support.fuzz.rest_requests import route_table

VENDOR = FOLDER / "vendor"
PAGES = FOLDER / "pages"
OWN = sorted([*FOLDER.glob("*.js"), *PAGES.glob("*.js")])
SCRIPTS = [*OWN, *sorted(VENDOR.glob("*.js"))]
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet|\beval\b|new Function|javascript:"
    r"|https?://|WebSocket|importScripts|serviceWorker"
)
IMPORT = re.compile(r"""(?:from|import)\s*["'](\./[\w.-]+)["']""")
LATER = re.compile(r"""import\(["'](\./[\w.-]+)["']\)""")


def test_vendored_files_are_those_of_the_manifest() -> None:
    manifest = json.loads((VENDOR / "MANIFEST.json").read_text())
    assert sorted(manifest) == sorted(path.name for path in VENDOR.glob("*.js"))
    assert {one.name: (one.version, one.sha256) for one in LIBRARIES} == {
        name: (one["version"], one["sha256_original"]) for name, one in manifest.items()
    }
    for name, one in manifest.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == one["sha256"], name
    licences = (VENDOR / "LICENSES.txt").read_text()
    assert all(f"{one.package} {one.version}\n" in licences for one in LIBRARIES)


def test_bare_imports_become_relative() -> None:
    text = 'import{h as n}from"preact";import"preact/hooks";export{x}from"./near.js"\n//# sourceMappingURL=a.map\n'
    made = 'import{h as n}from"./preact.js";import"./hooks.js";export{x}from"./near.js"\n'
    assert with_relative_imports(text) == made
    with pytest.raises(KeyError):
        with_relative_imports('import x from "other"')


@pytest.mark.parametrize("path", [*OWN, FOLDER / "index.html", FOLDER / "docs.html"], ids=lambda path: path.name)
def test_pages_make_no_markup_of_text_and_call_nobody_else(path: Path) -> None:
    assert FORBIDDEN.findall(path.read_text()) == []


def test_libraries_run_no_text() -> None:
    for path in VENDOR.glob("*.js"):
        assert re.findall(r"\beval\(|new Function|document\.write", path.read_text()) == [], path.name


def imported(pattern: re.Pattern[str], name: str) -> set[str]:
    (path,) = (path for path in SCRIPTS if path.name == name)
    return {found.removeprefix("./") for found in pattern.findall(path.read_text())}


def test_first_view_is_loaded_ahead_and_other_pages_when_shown() -> None:
    """A module that the first view imports, directly or not, is named in its page; nothing else is."""
    needed, known = set[str](), {"app.js"}
    while known != needed:
        needed = set(known)
        known |= {one for name in needed for one in imported(IMPORT, name)}
    page = (FOLDER / "index.html").read_text()
    assert set(re.findall(r'modulepreload" href="/console/([\w.-]+)"', page)) == needed - {"app.js"}
    assert "<style" not in page and not re.search(r"<script(?![^>]*src=)", page) and not re.search(r"\son\w+=", page)
    later = {one for name in needed for one in imported(LATER, name)}
    reached = later | {one for name in later for one in imported(IMPORT, name)}
    assert later and {path.name for path in PAGES.iterdir()} == reached - needed, "a page that nothing shows"
    for name in needed | reached:
        assert StaticFiles().response(Request("GET", f"/console/{name}"), name).status == 200


def test_names_of_files_are_unique_and_nothing_else_is_served() -> None:
    names = [path.name for folder in FOLDERS for path in folder.iterdir() if path.is_file()]
    assert len(names) == len(set(names))
    for name in ("MANIFEST.json", "../static_files.py", "nothing.js", "", "vendor"):
        with pytest.raises(NotFound):
            StaticFiles().response(Request("GET", "/x"), name)
    headers = dict(StaticFiles().response(Request("GET", "/x"), "index.html").headers)
    assert headers["Content-Security-Policy"] == CSP and "unsafe" not in CSP


def test_each_route_of_the_console_is_served() -> None:
    served = {(method, shown_path(pattern)) for method, pattern in route_table()}
    served.add(("GET", "/anabranch/v1/scalable/{tenant}/{namespace}/{topic}/events"))  # has no end: not in that list
    table = (FOLDER / "api.js").read_text()
    used = re.findall(r'"(GET|PUT|POST|DELETE) (/[^"]+)"', table)
    assert len(used) > 40
    for method, path in used:
        general = path.replace("/admin/v2/persistent/", "/admin/v2/{domain}/")
        assert (method, path) in served or (method, general) in served, f"{method} {path}"
    others = [path.name for path in OWN if re.search(r"\bfetch\(", path.read_text())]
    assert others == ["api.js", "docs.js", "stream.js"], "calls go through the table of api.js"


def test_commands_that_the_console_shows_exist(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {found for path in OWN for found in re.findall(r"[`\">](anabranch [a-z][^`\"<]*)", path.read_text())}
    assert len(shown) > 8
    for text in shown:
        chosen = text.replace("${drain ? ", "drain")  # the other word, resume, is in the help of its group
        words = shlex.split(re.sub(r"\$\{(?:[^{}]|\{[^}]*\})*\}", "X", chosen))[1:]
        assert main([*words, "--help"]) == 0, text
        assert {word for word in words if word.startswith("-")} <= set(
            re.findall(r"--[\w-]+", capsys.readouterr().out)
        ), text


def test_switched_off_console_serves_no_page() -> None:
    class Admin:
        def __getattr__(self, name: str) -> Admin:
            return self

    for console in (True, False):
        patterns = {route.pattern for route in make_router(cast(BrokerAdmin, Admin()), "1", console=console).routes}
        assert ("/" in patterns) is console and "/docs" in patterns


def test_first_view_is_small() -> None:
    page = (FOLDER / "index.html").read_text()
    names = {"index.html", *re.findall(r"/console/([\w.-]+)", page)}
    sizes = [
        len(gzip.compress(path.read_bytes(), 9))
        for path in (*FOLDER.iterdir(), *VENDOR.iterdir())
        if path.name in names
    ]
    assert len(sizes) == len(names)
    assert sum(sizes) <= 60 * 1024
