"""Schemas over admin REST: paths, bodies and answers as Pulsar's, errors that say what is wrong."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest


@pytest.fixture
def rest(broker: BrokerProcess) -> Rest:
    return Rest(broker.http_url)


@pytest.fixture
def path() -> str:
    """Schemas of a topic that does not exist, and need not."""
    return f"/admin/v2/schemas/public/default/r-{uuid.uuid4().hex[:12]}"


def avro(*fields: str, kind: str = "AVRO", **defaults: int) -> dict[str, Any]:
    made: list[dict[str, Any]] = [{"name": name, "type": "int"} for name in fields]
    made += [{"name": name, "type": "int", "default": value} for name, value in defaults.items()]
    definition = json.dumps({"type": "record", "name": "R", "fields": made})
    return {"type": kind, "schema": definition, "properties": {"owner": "me"}}


def test_none_yet(rest: Rest, path: str) -> None:
    missing = (404, {"reason": "Schema not found", "error": "schema-not-found"})
    assert rest.call("GET", f"{path}/schema") == missing
    assert rest.call("GET", f"{path}/schema/0") == missing
    assert rest.call("GET", f"{path}/metadata") == missing
    assert rest.call("GET", "/admin/v2/schemas/no/where/x/schema") == missing
    assert rest.call("GET", f"{path}/schemas") == (200, {"getSchemaResponses": []})
    assert rest.call("POST", f"{path}/version", avro("a")) == (200, {"version": -1})


def test_versions(rest: Rest, path: str) -> None:
    first, second = avro("a"), avro("a", b=1)
    assert rest.call("POST", f"{path}/schema", first) == (200, {"version": {"version": 0}})
    assert rest.call("POST", f"{path}/schema", first) == (200, {"version": {"version": 0}})
    assert rest.call("POST", f"{path}/schema", second) == (200, {"version": {"version": 1}})
    latest = rest.expect("GET", f"{path}/schema")
    assert latest.pop("timestamp") > 1_700_000_000_000
    assert latest == {"version": 1, "type": "AVRO", "data": second["schema"], "properties": {"owner": "me"}}
    assert rest.expect("GET", f"{path}/schema/0")["data"] == first["schema"]
    assert rest.call("GET", f"{path}/schema/2")[0] == 404
    assert [one["version"] for one in rest.expect("GET", f"{path}/schemas")["getSchemaResponses"]] == [0, 1]
    assert rest.expect("POST", f"{path}/version", first) == {"version": 0}
    metadata = rest.expect("GET", f"{path}/metadata")
    assert (metadata["info"]["version"], [one["version"] for one in metadata["index"]]) == (1, [0, 1])


def test_compatibility_check_changes_nothing(rest: Rest, path: str) -> None:
    fits = {"schemaCompatibilityStrategy": "FULL", "compatibility": True}
    assert rest.call("POST", f"{path}/compatibility", avro("a")) == (202, fits)
    rest.expect("POST", f"{path}/schema", avro("a"))
    assert rest.call("POST", f"{path}/compatibility", avro("a", b=1)) == (202, fits)
    status, answer = rest.call("POST", f"{path}/compatibility", avro("a", "b"))
    assert (status, answer["compatibility"]) == (202, False)
    assert "missing default value" in answer["reason"]
    assert [one["version"] for one in rest.expect("GET", f"{path}/schemas")["getSchemaResponses"]] == [0]


def test_what_is_refused(rest: Rest, path: str) -> None:
    rest.expect("POST", f"{path}/schema", avro("a"))

    def refused(body: Any) -> tuple[int, str]:
        status, answer = rest.call("POST", f"{path}/schema", body)
        assert answer["reason"]
        return status, answer["error"]

    assert refused(avro("a", "b")) == (409, "incompatible-schema")
    status, answer = rest.call("POST", f"{path}/schema", avro("a", kind="JSON"))
    assert (status, answer["reason"]) == (
        409,
        "Incompatible schema: exists schema type AVRO, new schema type JSON",
    )
    assert refused({"type": "AVRO", "schema": "{}"}) == (422, "bad-schema")
    assert refused({"type": "AUTO_CONSUME", "schema": ""}) == (422, "bad-schema")
    assert refused({"type": "ZZZ", "schema": ""}) == (422, "bad-schema")
    assert refused({"type": "AVRO", "schema": " " * 600_000}) == (422, "schema-too-large")
    bodies: list[Any] = [None, {}, [], {"type": 3}, {"type": "AVRO", "schema": {}}, {"type": "AVRO", "properties": []}]
    for nonsense in bodies:
        assert refused(nonsense)[0] == 400
    assert rest.call("GET", f"{path}/schema/x")[0] == 400
    assert rest.call("GET", f"{path}/schema/-1")[0] == 400
    assert rest.call("PUT", f"{path}/schema", avro("a"))[0] == 405
    assert rest.call("POST", "/admin/v2/schemas/no/where/x/schema", avro("a"))[0] == 404
    assert rest.call("DELETE", "/admin/v2/schemas/no/where/x/schema")[0] == 404


@pytest.mark.parametrize("kind", ["STRING", "BOOLEAN", "INT32", "DATE", "LOCAL_DATE_TIME", "EXTERNAL", "NONE", "BYTES"])
def test_types_without_a_definition(rest: Rest, path: str, kind: str) -> None:
    assert rest.expect("POST", f"{path}/schema", {"type": kind, "schema": ""}) == {"version": {"version": 0}}
    assert rest.expect("GET", f"{path}/schema")["type"] == ("NONE" if kind == "BYTES" else kind)


def test_key_value(rest: Rest, path: str) -> None:
    value = json.loads(avro("a")["schema"])
    body = {
        "type": "KEY_VALUE",
        "schema": json.dumps({"key": "", "value": value}),
        "properties": {"key.schema.type": "STRING", "value.schema.type": "AVRO"},
    }
    rest.expect("POST", f"{path}/schema", body)
    found = rest.expect("GET", f"{path}/schema")
    assert json.loads(found["data"]) == {"key": "", "value": value}
    assert rest.call("POST", f"{path}/schema", {**body, "schema": '{"key": ""}'})[0] == 422


def test_deletion(rest: Rest, path: str) -> None:
    assert rest.expect("DELETE", f"{path}/schema") == {"version": 0}
    assert rest.expect("POST", f"{path}/schema", avro("a")) == {"version": {"version": 1}}
    assert rest.expect("DELETE", f"{path}/schema") == {"version": 2}
    assert rest.expect("DELETE", f"{path}/schema?force=false") == {"version": 3}
    assert rest.call("GET", f"{path}/schema/1")[0] == 404
    assert rest.expect("POST", f"{path}/schema", {"type": "STRING"}) == {"version": {"version": 4}}
    assert rest.expect("DELETE", f"{path}/schema?force=true") == {"version": -1}
    assert rest.expect("POST", f"{path}/schema", avro("a")) == {"version": {"version": 0}}


def test_policies_of_a_namespace(rest: Rest) -> None:
    namespace = f"public/r-{uuid.uuid4().hex[:10]}"
    rest.create_namespace(namespace)

    def get(policy: str) -> Any:
        return rest.expect("GET", f"/admin/v2/namespaces/{namespace}/{policy}")

    def put(method: str, policy: str, value: Any) -> int:
        return rest.call(method, f"/admin/v2/namespaces/{namespace}/{policy}", value)[0]

    assert get("schemaCompatibilityStrategy") == "UNDEFINED"
    assert get("schemaCompatibilityStrategy?applied=true") == "FULL"
    assert get("schemaAutoUpdateCompatibilityStrategy") is None
    assert get("schemaValidationEnforced") is False
    assert get("isAllowAutoUpdateSchema") is True
    for strategy in ("BACKWARD", "FORWARD_TRANSITIVE", "ALWAYS_COMPATIBLE", "UNDEFINED"):
        assert put("PUT", "schemaCompatibilityStrategy", strategy) == 204
        assert get("schemaCompatibilityStrategy") == strategy
    assert put("PUT", "schemaAutoUpdateCompatibilityStrategy", "AutoUpdateDisabled") == 204
    assert get("schemaAutoUpdateCompatibilityStrategy") == "AutoUpdateDisabled"
    assert get("schemaCompatibilityStrategy?applied=true") == "ALWAYS_INCOMPATIBLE"
    assert put("POST", "schemaValidationEnforced", True) == 204
    assert get("schemaValidationEnforced") is True
    assert put("POST", "isAllowAutoUpdateSchema", False) == 204
    assert get("isAllowAutoUpdateSchema") is False
    assert put("PUT", "schemaCompatibilityStrategy", "zzz") == 400
    assert put("PUT", "schemaCompatibilityStrategy", None) == 400
    assert put("PUT", "schemaAutoUpdateCompatibilityStrategy", "FULL") == 400
    assert put("POST", "schemaValidationEnforced", "yes") == 400
    assert rest.call("GET", "/admin/v2/namespaces/public/nowhere/schemaValidationEnforced")[0] == 404
    assert rest.call("PUT", "/admin/v2/namespaces/public/nowhere/schemaCompatibilityStrategy", "FULL")[0] == 404


def test_a_namespace_takes_its_schemas_with_it(rest: Rest) -> None:
    namespace = f"public/r-{uuid.uuid4().hex[:10]}"
    rest.create_namespace(namespace)
    rest.expect("POST", f"/admin/v2/schemas/{namespace}/x/schema", avro("a"))
    rest.expect("DELETE", f"/admin/v2/namespaces/{namespace}")
    rest.create_namespace(namespace)
    assert rest.call("GET", f"/admin/v2/schemas/{namespace}/x/schema")[0] == 404
