"""Regular expressions over topic names, matched in linear time: for patterns that clients send.

A pattern is parsed into an automaton without backtracking, so no pattern can take exponential time. The accepted
syntax is the common part of Java's and RE2's: literals, `.`, classes, `\\d \\w \\s`, `\\Q…\\E`, groups, `|`, `*+?` and
counts, `^` as the first and `$` as the last character. Everything else (lookaround, back references, `\\b`, `\\p`) is
refused as unsupported; the client then polls and matches by itself.

    a(b|c)*  --parse-->  nodes  --build-->  states and edges (at most STATES_MAX)  --matches-->  sets of states, cached
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.model.errors import BadName, NotAllowed

PATTERN_CHARS_MAX = 256
STATES_MAX = 600
NESTING_MAX = 32
COUNT_MAX = 256
CACHE_MAX = 20_000
"""Transitions and members of state sets in the cache of one pattern; when there are more, it starts anew."""

_DIGITS = frozenset("0123456789")
_WORD = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE = frozenset(" \t\n\v\f\r")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}


@dataclass(frozen=True, slots=True)
class _Chars:
    """One character of a set, or (`is_negated`) outside of it."""

    single: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str], ...] = ()
    without: tuple[frozenset[str], ...] = ()  # a character outside of one of these is in the set: \D \W \S
    is_negated: bool = False

    def has(self, char: str) -> bool:
        found = (
            char in self.single
            or any(low <= char <= high for low, high in self.ranges)
            or any(char not in some for some in self.without)
        )
        return found is not self.is_negated


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    branches: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    low: int
    high: int | None


_Node = _Chars | _Sequence | _Choice | _Repeat
_ANY = _Chars(frozenset("\n"), is_negated=True)


@dataclass(eq=False, slots=True)
class _StateSet:
    """States that the automaton may be in, with the transitions found so far."""

    members: frozenset[int]
    is_final: bool
    moves: dict[str, _StateSet | None] = field(default_factory=dict)


class TopicPattern:
    """`matches(name)`: whether all of the name matches. Raises BadName; NotAllowed if unsupported."""

    __slots__ = ("text", "cost", "_edges", "_free", "_final", "_start", "_sets", "_cached")

    def __init__(self, text: str) -> None:
        """A domain at the beginning (`persistent://`) is ignored: names are matched without it."""
        if len(text) > PATTERN_CHARS_MAX:
            raise NotAllowed(f"a topic pattern may have {PATTERN_CHARS_MAX} characters, not {len(text)}")
        self.text = text
        self.cost = 0  # states visited by all matches
        self._edges: list[tuple[_Chars, int] | None] = []
        self._free: list[list[int]] = []  # edges without a character
        start, self._final = self._build(_Parser(text.partition("://")[2] or text).parse())
        self._start = self._closed({start})
        self._sets: dict[frozenset[int], _StateSet] = {}
        self._cached = 0

    def matches(self, name: str) -> bool:
        if self._cached > CACHE_MAX:
            self._sets, self._cached = {}, 0
        here = self._set(self._start)
        for char in name:
            self.cost += 1
            if char in here.moves:
                there = here.moves[char]
            else:
                there = here.moves[char] = self._after(here, char)
                self._cached += 1
            if there is None:
                return False
            here = there
        return here.is_final

    def _after(self, here: _StateSet, char: str) -> _StateSet | None:
        self.cost += len(here.members)
        reached = set()
        for state in here.members:
            edge = self._edges[state]
            if edge is not None and edge[0].has(char):
                reached.add(edge[1])
        return self._set(self._closed(reached)) if reached else None

    def _set(self, members: frozenset[int]) -> _StateSet:
        found = self._sets.get(members)
        if found is None:
            found = self._sets[members] = _StateSet(members, self._final in members)
            self._cached += len(members)
        return found

    def _closed(self, states: set[int]) -> frozenset[int]:
        """With the states that follow without a character."""
        found, unread = set(states), list(states)
        while unread:
            for state in self._free[unread.pop()]:
                if state not in found:
                    found.add(state)
                    unread.append(state)
        return frozenset(found)

    # -- building

    def _state(self) -> int:
        if len(self._edges) >= STATES_MAX:
            raise NotAllowed("the topic pattern is too complex")
        self._edges.append(None)
        self._free.append([])
        return len(self._edges) - 1

    def _build(self, node: _Node) -> tuple[int, int]:
        """Its first and last state."""
        start = self._state()
        match node:
            case _Chars():
                end = self._state()
                self._edges[start] = (node, end)
            case _Sequence(parts):
                end = start
                for part in parts:
                    end = self._join(end, part)
            case _Choice(branches):
                ends = [self._join(start, branch) for branch in branches]
                end = self._state()
                for one in ends:
                    self._free[one].append(end)
            case _Repeat(part, low, high):
                end = self._repeat(start, part, low, high)
        return start, end

    def _join(self, state: int, node: _Node) -> int:
        """The node after this state; returns its last state."""
        start, end = self._build(node)
        self._free[state].append(start)
        return end

    def _repeat(self, state: int, part: _Node, low: int, high: int | None) -> int:
        for _ in range(low):
            state = self._join(state, part)
        if high is None:
            loop, end = self._state(), self._state()
            self._free[state].append(loop)
            self._free[loop].append(end)
            self._free[self._join(loop, part)].append(loop)
            return end
        end = self._state()
        for _ in range(high - low):
            self._free[state].append(end)
            state = self._join(state, part)
        self._free[state].append(end)
        return end


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def parse(self) -> _Node:
        if self._peek() == "^":
            self._at += 1
        node = self._choice()
        if self._at < len(self._text):
            raise BadName(f"unmatched ) in topic pattern {self._text!r}")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise BadName(f"topic pattern {self._text!r} is not complete")
        self._at += 1
        return char

    def _unsupported(self, what: str) -> NotAllowed:
        return NotAllowed(f"{what} in topic pattern {self._text!r} is not supported by the broker")

    def _choice(self) -> _Node:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while (char := self._peek()) and char not in "|)":
            if self._text.startswith("\\Q", self._at):
                end = self._text.find("\\E", self._at)
                stop = len(self._text) if end < 0 else end
                parts += [_Chars(frozenset(one)) for one in self._text[self._at + 2 : stop]]
                self._at = stop if end < 0 else end + 2
                if parts and self._peek() in ("*", "+", "?", "{"):
                    parts.append(self._counted(parts.pop()))
            elif char == "$" and self._at == len(self._text) - 1 and not self._depth:
                self._at += 1
            else:
                parts.append(self._counted(self._atom()))
        return _Sequence(tuple(parts))

    def _atom(self) -> _Node:
        match self._take():
            case ".":
                return _ANY
            case "[":
                return self._class()
            case "(":
                return self._group()
            case "\\":
                return self._escape()
            case ("*" | "+" | "?" | "{") as char:
                raise BadName(f"nothing to repeat before {char} in topic pattern {self._text!r}")
            case ("^" | "$") as char:
                raise self._unsupported(f"{char} inside")
            case char:
                return _Chars(frozenset(char))

    def _group(self) -> _Node:
        if self._peek() == "?":
            if not self._text.startswith("?:", self._at):
                raise self._unsupported("(?")
            self._at += 2
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._unsupported(f"more than {NESTING_MAX} nested groups")
        node = self._choice()
        if self._take() != ")":
            raise BadName(f"unmatched ( in topic pattern {self._text!r}")
        self._depth -= 1
        return node

    def _escape(self) -> _Chars:
        char = self._take()
        if char in _CLASSES:
            return _Chars(_CLASSES[char])
        if char.lower() in _CLASSES:
            return _Chars(without=(_CLASSES[char.lower()],))
        if char.isalnum():
            raise self._unsupported(f"\\{char}")
        return _Chars(frozenset(char))

    def _class(self) -> _Chars:
        is_negated = self._peek() == "^"
        self._at += is_negated
        single: set[str] = set()
        ranges: list[tuple[str, str]] = []
        without: list[frozenset[str]] = []
        if self._peek() == "]":
            raise self._unsupported("] at the start of a class")
        while (char := self._take()) != "]":
            if char == "[" or (char == "&" and self._peek() == "&"):
                raise self._unsupported(f"{char} in a class")
            found = self._escape() if char == "\\" else _Chars(frozenset(char))
            is_range = self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]"
            if not is_range:
                single |= found.single
                without += found.without
                continue
            self._at += 1
            last = self._take()
            end = self._escape() if last == "\\" else _Chars(frozenset(last))
            if len(found.single) != 1 or len(end.single) != 1 or last == "[":
                raise self._unsupported("a range of classes")
            (low,), (high,) = found.single, end.single
            if low > high:
                raise BadName(f"range {low}-{high} in topic pattern {self._text!r} is empty")
            ranges.append((low, high))
        return _Chars(frozenset(single), tuple(ranges), tuple(without), is_negated)

    def _counted(self, node: _Node) -> _Node:
        """The node with the repetition that follows it. Lazy ones match the same names."""
        match self._peek():
            case "*":
                low, high = 0, None
                self._at += 1
            case "+":
                low, high = 1, None
                self._at += 1
            case "?":
                low, high = 0, 1
                self._at += 1
            case "{":
                self._at += 1
                low, high = self._count()
            case _:
                return node
        if self._peek() == "?":
            self._at += 1
        if self._peek() in ("*", "+", "?", "{"):
            raise self._unsupported("a repetition of a repetition")
        return _Repeat(node, low, high)

    def _count(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        first, comma, second = self._text[self._at : max(end, self._at)].partition(",")
        if end < 0 or not _is_number(first) or not (second == "" or _is_number(second)):
            raise BadName(f"a count of topic pattern {self._text!r} is not {{n}}, {{n,}} or {{n,m}}")
        self._at = end + 1
        low = int(first)
        high = None if comma and not second else int(second or first)
        if max(low, high or 0) > COUNT_MAX:
            raise self._unsupported(f"a count above {COUNT_MAX}")
        if high is not None and high < low:
            raise BadName(f"a count of topic pattern {self._text!r} ends before it begins")
        return low, high


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 4 and text.isascii() and text.isdecimal()
