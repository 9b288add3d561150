"""Settings from a file, the environment and flags into frozen dataclasses, with all complaints in one report.

A *root* dataclass has one field per group; each group is a frozen dataclass of plain values. `storage.sync` is the
field `sync` of the group in the root's field `storage`: `[storage] sync = …` in the TOML file, ANABRANCH_STORAGE_SYNC
in the environment, a flag on the command line. Later layers win. The caller passes the environment.

A field's `metadata` may hold `help` (one line for people), `secret` (its value is never shown) and `file` (it names a
file; in a settings file, a relative name is relative to that file, so that the broker may start in any directory).
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ENV_PREFIX = "ANABRANCH_"
_UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "b": 1, "": 1}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class SettingsError(Exception):
    """All problems of the settings, one line each. Not a subclass of `Error`, which this layer cannot import."""

    code = "bad-settings"
    retryable = False

    def __init__(self, complaints: Sequence[str]) -> None:
        super().__init__("; ".join(complaints))
        self.complaints = tuple(complaints)

    @property
    def reason(self) -> str:
        return str(self)


def require(condition: bool, name: str, text: str) -> None:
    """For `__post_init__` of a group: `require(self.port < 65536, "http.port", "at most 65535")`."""
    if not condition:
        raise SettingsError([f"{name}: {text}"])


def require_all(*checks: tuple[bool, str, str]) -> None:
    """Like several `require`, but reports all complaints together."""
    complaints = [f"{name}: {text}" for condition, name, text in checks if not condition]
    if complaints:
        raise SettingsError(complaints)


@dataclass(frozen=True, slots=True)
class Layer:
    """Raw values by dotted name, and their origin, which complaints show."""

    origin: str
    values: Mapping[str, Any]
    complaints: tuple[str, ...] = ()
    directory: Path | None = None  # of the settings file


def file_layer(path: Path) -> Layer:
    """A TOML file. An unreadable one is a complaint, not an exception."""
    import tomllib

    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return Layer(str(path), {}, (f"{path}: {error.strerror or error}",))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return Layer(str(path), {}, (f"{path}: {error}",))
    values: dict[str, Any] = {}
    complaints: list[str] = []
    for section, content in tree.items():
        if isinstance(content, dict):
            values.update({f"{section}.{key}": value for key, value in content.items()})
        else:
            complaints.append(f"{path}: `{section}` stands outside of a [section]")
    return Layer(str(path), values, tuple(complaints), path.absolute().parent)


def env_layer(root: type[Any], environ: Mapping[str, str]) -> Layer:
    """ANABRANCH_SECTION_KEY for the sections of `root`; other ANABRANCH_ variables are ignored."""
    values = {}
    for section, _ in _groups(root):
        prefix = f"{ENV_PREFIX}{section.upper()}_"
        values.update(
            {
                f"{section}.{name[len(prefix) :].lower()}": value
                for name, value in environ.items()
                if name.startswith(prefix)
            }
        )
    return Layer("environment", values)


def load(root: type[T], layers: Sequence[Layer]) -> T:
    """Build `root` from the layers, later ones winning; raises SettingsError with all complaints of all groups."""
    complaints = [text for layer in layers for text in layer.complaints]
    known = {f"{section}.{field.name}" for section, group in _groups(root) for field in fields(group)}
    for layer in layers:
        complaints += [
            f"{name}: no such setting ({layer.origin}){_hint(name, known)}"
            for name in layer.values
            if name not in known
        ]
    built: dict[str, Any] = {}
    for section, group in _groups(root):
        values, wrong = _group_values(section, group, layers)
        if not wrong:
            try:
                built[section] = group(**values)
            except SettingsError as error:
                wrong = list(error.complaints)
            except (
                Exception
            ) as error:  # a group may reject its values with any error, which becomes one line of the report
                wrong = str(error).split("; ")
        complaints += wrong
    if not complaints:
        try:
            return root(**built)
        except SettingsError as error:
            complaints += error.complaints
    raise SettingsError(complaints)


def changed(root: T, values: Mapping[str, Any], origin: str) -> T:
    """The settings with other values for some, converted and checked as `load` does; raises SettingsError."""
    layer, built, complaints = Layer(origin, values), {}, []
    groups = dict(_groups(type(root)))
    known = {f"{section}.{field.name}" for section, group in groups.items() for field in fields(group)}
    complaints = [f"{name}: no such setting{_hint(name, known)}" for name in values if name not in known]
    for section, group in groups.items():
        if any(name.startswith(f"{section}.") for name in values):
            found, wrong = _group_values(section, group, [layer])
            complaints += wrong
            try:
                built[section] = dataclasses.replace(getattr(root, section), **found)
            except SettingsError as error:
                complaints += error.complaints
    if complaints:
        raise SettingsError(complaints)
    return dataclasses.replace(root, **built)  # type: ignore[type-var]  # roots are dataclasses


def sample(root: type[Any]) -> str:
    """A TOML file with every setting at its default, commented out, each with its line of help."""
    lines = [
        "# Anabranch settings. Every value shown is the default; remove its # to change it.",
        f"# The environment ({ENV_PREFIX}SECTION_KEY) wins over this file, flags win over both.",
    ]
    for section, group in _groups(root):
        lines += ["", f"[{section}]"]
        for field in fields(group):
            text = field.metadata.get("help")
            lines += [f"# {text}"] if text else []
            default = _default(field)
            shown = "   # required" if default is MISSING else f" {_toml(default)}".rstrip()
            lines.append(f"#{field.name} ={shown}")
    return "\n".join(lines) + "\n"


def reference(root: type[Any]) -> str:
    """The reference of all settings as a Markdown page."""
    lines = [
        "# Settings",
        "",
        "Generated: `anabranch config sample --markdown > docs/reference/settings.md`; a test keeps it in step.",
        "",
        "A setting `storage.sync` is `sync` in the section `[storage]` of the TOML file given with `--config`,",
        f"`{ENV_PREFIX}STORAGE_SYNC` in the environment, or `--set storage.sync=…` on the command line; the later of",
        "these wins. Sizes may be written like `64MiB`. A relative name of a key or certificate file is relative to",
        "the file that `--config` names, elsewhere to the working directory.",
    ]
    for section, group in _groups(root):
        lines += ["", f"## [{section}]", "", "| setting | default | meaning |", "|---|---|---|"]
        for field in fields(group):
            default = _default(field)
            shown = "required" if default is MISSING else "none" if default is None else f"`{_toml(default)}`"
            lines.append(f"| `{section}.{field.name}` | {shown} | {field.metadata.get('help', '')} |")
    return "\n".join(lines) + "\n"


def shown(root: Any) -> dict[str, str]:
    """All effective settings by dotted name, as text; of secrets only whether they are set."""
    found: dict[str, str] = {}
    for section, group in _groups(type(root)):
        values = getattr(root, section)
        for field in fields(group):
            value = getattr(values, field.name)
            if field.metadata.get("secret") and value:
                found[f"{section}.{field.name}"] = "(set, not shown)"
            else:
                found[f"{section}.{field.name}"] = _toml(value).removeprefix('"').removesuffix('"')
    return found


def _groups(root: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    for name, hint in typing.get_type_hints(root).items():
        assert isinstance(hint, type), f"{root.__name__}.{name} is not a settings group"
        assert is_dataclass(hint), f"{root.__name__}.{name} is not a settings group"
        yield name, hint


def _group_values(section: str, group: type[Any], layers: Sequence[Layer]) -> tuple[dict[str, Any], list[str]]:
    hints = typing.get_type_hints(group)
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for field in fields(group):
        name = f"{section}.{field.name}"
        layer = next((layer for layer in reversed(layers) if name in layer.values), None)
        if layer is None:
            if _default(field) is MISSING:
                wrong.append(f"{name}: is required")
            continue
        raw = layer.values[name]
        try:
            value = _convert(raw, hints[field.name], field.name)
            values[field.name] = _beside(layer.directory, value) if field.metadata.get("file") else value
        except ValueError as error:
            shown = "the value given" if field.metadata.get("secret") else repr(raw)
            wrong.append(f"{name}: {shown} is not {error} ({layer.origin})")
    return values, wrong


def _beside(directory: Path | None, value: Any) -> Any:
    """A relative file name, made absolute; other values are unchanged. URLs (data:, file:) are not file names."""
    if directory is None or not value or (isinstance(value, str) and value.startswith(("data:", "file:"))):
        return value
    return type(value)(directory / value)


def _convert(raw: Any, hint: Any, name: str) -> Any:
    """The raw value as `hint`, or ValueError with what was expected. Text is accepted for all types."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [option for option in typing.get_args(hint) if option is not type(None)]
        assert len(inner) == 1, f"{name}: only `X | None` unions are supported"
        return None if raw in (None, "") else _convert(raw, inner[0], name)
    if origin is typing.Literal:
        options = typing.get_args(hint)
        if raw not in options:
            raise ValueError("one of " + ", ".join(map(str, options)))
        return raw
    if origin is tuple:
        items = [item.strip() for item in raw.split(",") if item.strip()] if isinstance(raw, str) else raw
        if not isinstance(items, (list, tuple)):
            raise ValueError("a list")
        return tuple(_convert(item, typing.get_args(hint)[0], name) for item in items)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(raw)
        except ValueError:
            raise ValueError("one of " + ", ".join(str(member.value) for member in hint)) from None
    assert hint in _SCALARS, f"{name}: settings of type {hint} are not supported"
    return _SCALARS[hint](raw, name)


def _as_int(raw: Any, name: str) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    is_size = "bytes" in name
    if isinstance(raw, str):
        text = raw.strip().replace("_", "").lower()
        digits = text.rstrip("kmgtib ") if is_size else text
        unit = text[len(digits) :].strip()
        if digits.removeprefix("-").isdecimal() and unit in _UNITS:
            return int(digits) * _UNITS[unit]
    raise ValueError("a size like 65536 or 64MiB" if is_size else "a whole number")


def _as_float(raw: Any, name: str) -> float:
    if isinstance(raw, (int, float, str)) and not isinstance(raw, bool):
        try:
            number = float(raw)
        except ValueError:
            raise ValueError("a number") from None
        if number == number and abs(number) != float("inf"):
            return number
    raise ValueError("a number")


def _as_bool(raw: Any, name: str) -> bool:
    if isinstance(raw, bool):
        return raw
    text = raw.strip().lower() if isinstance(raw, str) else None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError("true or false")


def _as_text(raw: Any, name: str) -> str:
    if not isinstance(raw, str):
        raise ValueError("text")
    return raw


def _as_path(raw: Any, name: str) -> Path:
    if isinstance(raw, Path):
        return raw
    if not isinstance(raw, str) or not raw:
        raise ValueError("a path")
    return Path(raw).expanduser()


_SCALARS: Mapping[Any, Any] = {int: _as_int, float: _as_float, bool: _as_bool, str: _as_text, Path: _as_path}


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _hint(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1, 0.7)
    return f"; did you mean {near[0]}?" if near else ""


def _toml(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case enum.Enum():
            return _toml(value.value)
        case int() | float():
            return repr(value)
        case tuple() | list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
