"""What users, clients and operators rely on, read from the running program as plain lines of text.

Every collector returns a mapping from an entry to its description. The collectors use public modules, the command line,
the REST description and the protobuf descriptor pool, so that moving an internal module changes nothing here. The only
other import is `scripts.metrics_reference`, which knows every metric.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import pkgutil
import runpy
import subprocess
import sys
import typing
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import click
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

import anabranch
import anabranch.testing
from scripts import metrics_reference

Surface = dict[str, str]

MODULES = (
    "anabranch",
    "anabranch.admin",
    "anabranch.admin.blocking",
    "anabranch.blocking",
    "anabranch.schema",
    "anabranch.spark",
    "anabranch.testing",
)
ASYNC_AND_BLOCKING = {
    "Client": "BlockingClient",
    "Producer": "BlockingProducer",
    "QueueConsumer": "BlockingQueueConsumer",
    "StreamConsumer": "BlockingStreamConsumer",
    "CheckpointConsumer": None,  # `anabranch.blocking` has it and does not export its name
}
"""The asynchronous classes also have methods for the client's own parts. Users see those that the blocking form has."""
NOT_CONSTRUCTED = {*ASYNC_AND_BLOCKING, "Admin", "BlockingAdmin", "Checkpoint", "Message", "MessageBatch"} | {
    name for name in ASYNC_AND_BLOCKING.values() if name is not None
}
"""Users get instances from other calls; the parameters of the constructor are internal."""
INTERNAL = {
    "anabranch.Checkpoint.cut_of",
    "anabranch.Checkpoint.cuts",
    "anabranch.Checkpoint.kind",
    "anabranch.Message.decoder",
    "anabranch.Message.delivery",
    "anabranch.Message.origin",
}
"""Documented nowhere; for the client's own parts."""
WIRE_COMMAND = "anabranch.wire.BaseCommand"
PROTOCOL_METHODS = frozenset(
    f"__{name}__"
    for name in (
        *("aenter", "aexit", "enter", "exit", "await", "call"),
        *("iter", "next", "aiter", "anext", "len", "getitem", "contains", "bytes"),
        *("lt", "le", "gt", "ge"),
    )
)


# ---------------------------------------------------------------------------------------------------- Python names


def python_names() -> Surface:
    """Public names of the public modules, their signatures, and the public members of their classes."""
    found: Surface = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            _describe(found, f"{name}.{public}", getattr(module, public))
    for name, connected in (
        ("anabranch.admin.Admin", anabranch.admin.connect()),
        ("anabranch.admin.blocking.BlockingAdmin", anabranch.admin.blocking.connect()),
    ):
        for group, calls in vars(connected).items():  # connecting opens nothing
            if not group.startswith("_"):
                found[f"{name}.{group}"] = "group of calls"
                _describe_members(found, f"{name}.{group}", type(calls))
    path = "anabranch.blocking.BlockingClient.checkpoint_consumer"
    _describe_members(found, f"{path}()", _blocking_checkpoint_consumer())
    return {entry: text for entry, text in found.items() if entry not in INTERNAL}


def _blocking_checkpoint_consumer() -> type:
    result = typing.get_type_hints(anabranch.blocking.BlockingClient.checkpoint_consumer)["return"]
    assert inspect.isclass(result)
    return result


def _describe(found: Surface, path: str, value: object) -> None:
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        found[path] = "enumeration"
        found.update({f"{path}.{one.name}": repr(one.value) for one in value})
        _describe_members(found, path, value)
    elif inspect.isclass(value):
        found[path] = "class" if value.__name__ in NOT_CONSTRUCTED else f"class{_signature(value)}"
        _describe_members(found, path, value, _names_of_blocking(value))
    elif isinstance(value, ModuleType):
        found[path] = "module"
    elif callable(value):
        found[path] = _kind_of(value) + _signature(value)
    else:
        found[path] = type(value).__name__


def _names_of_blocking(cls: type) -> set[str] | None:
    """What the blocking form of a class offers; None: the class has no such form."""
    if cls.__name__ not in ASYNC_AND_BLOCKING:
        return None
    name = ASYNC_AND_BLOCKING[cls.__name__]
    return set(dir(_blocking_checkpoint_consumer() if name is None else getattr(anabranch.blocking, name)))


def _describe_members(found: Surface, path: str, cls: type, wanted: set[str] | None = None) -> None:
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "anabranch"]
    names = {name for base in ours for name in (*vars(base), *inspect.get_annotations(base))}
    for name in names:
        is_protocol = name in PROTOCOL_METHODS
        is_hidden = name.startswith("_") or (wanted is not None and name not in wanted)
        if f"{path}.{name}" in found or (is_hidden and not is_protocol):
            continue
        member = inspect.getattr_static(cls, name, None)
        if isinstance(member, staticmethod | classmethod):
            kind = type(member).__name__
            found[f"{path}.{name}"] = f"{kind} {_kind_of(member.__func__)}{_signature(getattr(cls, name))}"
        elif inspect.isfunction(member):
            found[f"{path}.{name}"] = _kind_of(member) + _signature(member)
        else:
            found[f"{path}.{name}"] = "attribute"  # a property, a slot or a field; users cannot tell them apart


def _kind_of(value: object) -> str:
    if inspect.iscoroutinefunction(value):
        return "async def"
    if inspect.isasyncgenfunction(value):
        return "async generator"
    return "def"


def _signature(value: Callable[..., Any]) -> str:
    """Names, kinds and defaults of the parameters; no annotations, because those name modules."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # of an exception or an enumeration without a constructor
        return "(...)"
    plain = [
        one.replace(
            annotation=inspect.Parameter.empty,
            default=one.default if one.default is inspect.Parameter.empty else _Shown(one.default),
        )
        for one in signature.parameters.values()
    ]
    return str(inspect.Signature(plain))


class _Shown:
    """A default as text that does not depend on modules or addresses."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if value == anabranch.Checkpoint.latest():
            return "Checkpoint.latest()"
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if inspect.isclass(value) or inspect.isroutine(value):
            return value.__name__
        text = repr(value)
        return f"<{type(value).__name__}>" if " at 0x" in text or " object" in text else text


# ------------------------------------------------------------------------------------------------------------ errors


def error_codes() -> Surface:
    """`code` and `retryable` of every error class of the package; class names are not public."""
    import_everything()
    retryable: dict[str, set[bool]] = {}
    for cls in _subclasses(anabranch.Error):
        if cls.__module__.partition(".")[0] == "anabranch":  # not the doubles of tests
            retryable.setdefault(cls.code, set()).add(cls.retryable)
    return {code: f"retryable: {' or '.join(sorted(map(_yes, answers)))}" for code, answers in retryable.items()}


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _subclasses(cls: type[anabranch.Error]) -> Iterator[type[anabranch.Error]]:
    yield cls
    for one in cls.__subclasses__():
        yield from _subclasses(one)


def import_everything() -> None:
    """Every module of the package."""
    for module in pkgutil.walk_packages(anabranch.__path__, "anabranch."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)


# -------------------------------------------------------------------------------------------------- settings, metrics


def settings() -> Surface:
    """`section.key` and its default, as `anabranch config sample` prints them."""
    command = [sys.executable, "-m", "anabranch", "config", "sample"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found: Surface = {}
    section = ""
    for line in printed.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.startswith("#") and not line.startswith("# "):
            key, _, default = line.removeprefix("#").partition("=")
            found[f"{section}.{key.strip()}"] = default.strip()
    return found


def metrics() -> Surface:
    """Name, type and labels of every metric."""
    found: Surface = {}
    labels = ""
    for line in metrics_reference.page().splitlines():
        if line.startswith("Labels: "):
            labels = line.removeprefix("Labels: ").rstrip(".").replace("`", "")
        elif line.startswith("| `"):
            name, kind, _ = line.removeprefix("| ").split(" | ", 2)
            found[name.strip("`")] = f"{kind}; labels: {labels}"
    return found


# -------------------------------------------------------------------------------------------------------------- REST


def rest(http_url: str | None = None) -> Surface:
    """Every path and method with its parameters, body and answer, from the OpenAPI document that a broker serves."""
    if http_url is None:
        with anabranch.testing.Broker() as broker:
            return rest(broker.http_url)
    with urllib.request.urlopen(f"{http_url}/openapi.json", timeout=30) as answer:
        document = json.load(answer)
    found = {
        f"{path} {method.upper()}": _operation(operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    for name, schema in document["components"]["schemas"].items():
        found[f"schema {name}"] = _compact(schema)
    return found


def _operation(operation: Mapping[str, Any]) -> str:
    parts = [f"{one['in']} {one['name']}: {_compact(one['schema'])}" for one in operation["parameters"]]
    for word, content in (("body", operation.get("requestBody", {})), ("answer", operation["responses"]["2XX"])):
        schemas = (one.get("schema", {}) for one in content.get("content", {}).values())
        parts += [f"{word}: {_compact(schema)}" for schema in schemas]
    if "307" in operation["responses"]:
        parts.append("redirects")
    if "security" in operation:
        parts.append("signed in")
    return "; ".join(parts)


def _compact(schema: object) -> str:
    return json.dumps(schema, separators=(",", ":"), sort_keys=True)


# ------------------------------------------------------------------------------------------------------ command line


def command_line() -> Surface:
    """Every command with its arguments and options, walked through click."""
    found: Surface = {}
    _walk(found, "anabranch", root_command())
    return found


def root_command() -> click.Command:
    """What `python -m anabranch` would run."""
    seen: list[click.Command] = []

    def remember(command: click.Command, *arguments: object, **options: object) -> int:
        seen.append(command)
        return 0

    with patch.object(click.Command, "main", remember), patch.object(sys, "argv", ["anabranch"]):
        try:
            runpy.run_path(str(Path(anabranch.__file__).with_name("__main__.py")), run_name="__main__")
        except SystemExit:
            pass
    (root,) = seen
    return root


def _walk(found: Surface, path: str, command: click.Command) -> None:
    found[path] = "group" if isinstance(command, click.Group) else "command"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            names = ", ".join((*parameter.opts, *parameter.secondary_opts))
            found[f"{path} {names}"] = _option(parameter)
        else:
            found[f"{path} <{parameter.name}>"] = _argument(parameter)
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, f"{path} lists {name} and does not have it"
            _walk(found, f"{path} {name}", inner)


def _option(option: click.Option) -> str:
    if option.is_flag:
        parts = ["flag"]
    elif option.count:
        parts = ["counted flag"]
    else:
        parts = [_type_of(option)]
        if (default := option.to_info_dict()["default"]) is not None:
            parts.append(f"default {_Shown(default)!r}")
    words = {
        "required": option.required,
        "multiple": option.multiple,
        "hidden": option.hidden,
        f"nargs {option.nargs}": option.nargs != 1,
        f"environment {option.envvar}": bool(option.envvar),
    }
    return "; ".join([*parts, *(word for word, is_so in words.items() if is_so)])


def _argument(argument: click.Parameter) -> str:
    words = {"optional": not argument.required, f"nargs {argument.nargs}": argument.nargs != 1}
    return "; ".join([f"argument {_type_of(argument)}", *(word for word, is_so in words.items() if is_so)])


def _type_of(parameter: click.Parameter) -> str:
    kind = parameter.type
    return "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else kind.name


# -------------------------------------------------------------------------------------------------------------- wire


def wire() -> Surface:
    """Every message, field and enumeration of our `.proto` file with its numbers; the commands are among them."""
    import_everything()  # whichever module holds the generated code
    file = descriptor_pool.Default().FindMessageTypeByName(WIRE_COMMAND).file
    found: Surface = {"package": file.package}
    for enumeration in file.enum_types_by_name.values():
        _describe_enum(found, enumeration)
    for message in file.message_types_by_name.values():
        _describe_message(found, message)
    return found


def _describe_enum(found: Surface, enumeration: EnumDescriptor) -> None:
    name = _local(enumeration.full_name)
    found.update({f"{name}.{value.name}": f"= {value.number}" for value in enumeration.values})


def _describe_message(found: Surface, message: Descriptor) -> None:
    name = _local(message.full_name)
    found[name] = "message"
    for field in message.fields:
        found[f"{name}.{field.name}"] = _field(field)
    for enumeration in message.enum_types:
        _describe_enum(found, enumeration)
    for nested in message.nested_types:
        _describe_message(found, nested)


def _field(field: FieldDescriptor) -> str:
    label = "repeated" if field.is_repeated else "required" if field.is_required else "optional"
    kind = next(name for name, number in _KINDS.items() if number == field.type)
    of = field.message_type or field.enum_type
    parts = [f"= {field.number}", label, kind if of is None else f"{kind} {_local(of.full_name)}"]
    if field.containing_oneof is not None:
        parts.append(f"oneof {field.containing_oneof.name}")
    if field.has_default_value:
        parts.append(f"default {field.default_value!r}")
    return " ".join(parts)


_KINDS = {
    name.removeprefix("TYPE_").lower(): value
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def _local(full_name: str) -> str:
    return full_name.removeprefix(WIRE_COMMAND.rpartition(".")[0] + ".")


COLLECTORS: Mapping[str, Callable[[], Surface]] = {
    "python": python_names,
    "errors": error_codes,
    "settings": settings,
    "metrics": metrics,
    "rest": rest,
    "cli": command_line,
    "wire": wire,
}
