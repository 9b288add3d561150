"""`anabranch admin schemas`: its verbs, as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.cli.admin.verb import Values, Verb, filled, group_of, option

_TOPIC = "/admin/v2/schemas/{bare_topic}"


def _read(values: Values) -> dict[str, Any]:
    """The file as pulsar-admin takes it: {"type": "AVRO", "schema": "…", "properties": {}}."""
    path: Path = values["filename"]
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.BadParameter(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter(f'{path} must hold an object like {{"type": "AVRO", "schema": "…"}}')
    if isinstance(found.get("schema"), dict | list):
        found["schema"] = json.dumps(found["schema"])  # a definition written as JSON, not as a text that holds it
    return found


def _get(admin: AdminClient, values: Values) -> Any:
    path = filled(_TOPIC + "/schema", values)
    return admin.get(path if values["version"] is None else f"{path}/{values['version']}")


def _file() -> click.Option:
    return option(
        "-f",
        "--filename",
        required=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help='JSON like {"type": "AVRO", "schema": {…}, "properties": {}}.',
    )


SCHEMAS = (
    Verb(
        name="get",
        help="The schema of a topic.",
        path=_TOPIC + "/schema",
        options=(option("-v", "--version", type=click.IntRange(min=0), metavar="N", help="Default: the latest."),),
        run=_get,
        example="my-topic",
    ),
    Verb(
        name="list",
        help="All versions of a topic's schema, oldest first.",
        path=_TOPIC + "/schemas",
        run=lambda admin, values: admin.get(filled(_TOPIC + "/schemas", values))["getSchemaResponses"],
        example="my-topic",
    ),
    Verb(
        name="metadata",
        help="Numbers of the versions of a topic's schema.",
        path=_TOPIC + "/metadata",
        example="my-topic",
    ),
    Verb(
        name="upload",
        help="Add a schema; the same one again keeps its version.",
        method="POST",
        path=_TOPIC + "/schema",
        options=(_file(),),
        body=_read,
        done="version {answer[version][version]}",
        example="my-topic -f schema.json",
    ),
    Verb(
        name="compatibility",
        help="Would this schema be accepted?",
        method="POST",
        path=_TOPIC + "/compatibility",
        options=(_file(),),
        body=_read,
        example="my-topic -f schema.json",
    ),
    Verb(
        name="version",
        help="The version that a schema has; -1: none.",
        method="POST",
        path=_TOPIC + "/version",
        options=(_file(),),
        body=_read,
        example="my-topic -f schema.json",
    ),
    Verb(
        name="delete",
        help="Delete the schema of a topic.",
        method="DELETE",
        path=_TOPIC + "/schema",
        options=(option("-f", "--force", is_flag=True, help="With its whole history."),),
        query={"force": "force"},
        done="deleted the schema",
        example="my-topic",
    ),
)

schemas = group_of("schemas", "Schemas of topics.", SCHEMAS)
