"""Routes as data, and the route of a request.

A pattern is a path whose parts are literals, `{name}` (any one part, which may hold an encoded slash) or `{name:a|b}`
(one of these words). Parts are split before they are decoded, so `a%2Fb` is one part. A literal wins over a name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

from anabranch.model.errors import BadRequest, Error
from anabranch.rest.http_message import Request, Response
from anabranch.security.permissions import Need

Handler = Callable[[Request], Awaitable[Response]]


class UnknownPath(Error):
    code = "unknown-path"

    def __init__(self, path: str) -> None:
        super().__init__(f"nothing is served under {path}")


class WrongMethod(Error):
    code = "wrong-method"

    def __init__(self, method: str, path: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{method} is not served under {path}; allowed: {', '.join(allowed)}")
        self.allowed = tuple(allowed)


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    pattern: str
    handler: Handler
    summary: str
    need: Need | None = None  # required permission; None: super-users only, and a test fails
    at_owner: bool = False  # needs the loaded topic; other brokers redirect to its owner
    flag_needs: tuple[tuple[str, Need], ...] = ()  # flags in the query that need a further permission
    takes: Callable[[Mapping[str, str]], bool] | None = None  # which values of the named parts; None: all


@dataclass(frozen=True, slots=True)
class Match:
    route: Route
    params: dict[str, str]


@dataclass(slots=True)
class _Node:
    literals: dict[str, _Node] = field(default_factory=dict)
    named: _Node | None = None
    routes: dict[str, tuple[Route, tuple[tuple[int, str], ...]]] = field(
        default_factory=dict
    )  # positions of the named parts


class Router:
    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        for route in routes:
            self._add(route)

    def match(self, method: str, path: str) -> Match:
        """Raises UnknownPath or WrongMethod. HEAD is served by what serves GET."""
        parts = [_decoded(part) for part in path.removesuffix("/").split("/")[1:]]
        served: set[str] = set()
        wanted = "GET" if method == "HEAD" else method
        for node in _reachable(self._root, parts, 0):
            if (found := node.routes.get(wanted)) is not None:
                route, places = found
                params = {name: parts[place] for place, name in places}
                if route.takes is None or route.takes(params):
                    return Match(route, params)
            served.update(node.routes.keys() - {wanted})
        if not path.startswith("/") or not served:
            raise UnknownPath(path)
        implied = {"HEAD", "OPTIONS"} if "GET" in served else {"OPTIONS"}
        raise WrongMethod(method, path, sorted(served | implied))

    def _add(self, route: Route) -> None:
        nodes = [self._root]
        places: list[tuple[int, str]] = []
        for place, part in enumerate(route.pattern.removesuffix("/").split("/")[1:]):
            if not part.startswith("{"):
                words = [part]
            else:
                name, _, choice = part[1:-1].partition(":")
                places.append((place, name))
                words = choice.split("|") if choice else []
            nodes = [child for node in nodes for child in _step(node, words)]
        for node in nodes:
            assert route.method not in node.routes, f"{route.method} {route.pattern} is routed twice"
            node.routes[route.method] = (route, tuple(places))


def _step(node: _Node, words: list[str]) -> list[_Node]:
    if words:
        return [node.literals.setdefault(word, _Node()) for word in words]
    node.named = node.named or _Node()
    return [node.named]


def _reachable(node: _Node, parts: list[str], place: int) -> Iterator[_Node]:
    if place == len(parts):
        if node.routes:
            yield node
        return
    if (literal := node.literals.get(parts[place])) is not None:
        yield from _reachable(literal, parts, place + 1)
    if node.named is not None and parts[place]:
        yield from _reachable(node.named, parts, place + 1)


def _decoded(part: str) -> str:
    """Decodes %XX, and + as a space, as Java's clients encode it."""
    try:
        return unquote_plus(part, errors="strict")
    except UnicodeDecodeError as error:
        raise BadRequest(f"{part!r} does not decode to UTF-8") from error
