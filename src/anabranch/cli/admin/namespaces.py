"""`anabranch admin namespaces`: its verbs, as data. Policies one by one are in `namespace_policies`."""

from __future__ import annotations

from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.admin.paths import component
from anabranch.cli.admin.namespace_policies import POLICY_VERBS
from anabranch.cli.admin.policy_verbs import NAMESPACE
from anabranch.cli.admin.verb import Values, Verb, filled, group_of, option
from anabranch.cli.param_types import properties_of, words_of

_ROLE = option("--role", required=True, metavar="ROLE", help="The role.")
_SUBSCRIPTION = option("-s", "--subscription", required=True, metavar="NAME", help="The subscription.")


def _new_body(values: Values) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if values["bundles"]:
        body["bundles"] = {"numBundles": values["bundles"]}
    if values["clusters"]:
        body["replication_clusters"] = words_of(values["clusters"])
    return body


def _bundle(required: bool = False) -> click.Option:
    return option("-b", "--bundle", required=required, metavar="RANGE", help="Only this: 0x00000000_0x40000000.")


def _with_bundle(suffix: str, admin: AdminClient, values: Values, method: str) -> Any:
    bundle = f"/{component(values['bundle'])}" if values["bundle"] else ""
    return admin.call(method, filled(NAMESPACE, values) + bundle + suffix).value


def _unload(admin: AdminClient, values: Values) -> Any:
    bundle = f"/{component(values['bundle'])}" if values["bundle"] else ""
    query = {"destinationBroker": values["destination_broker"]}
    return admin.call("PUT", f"{filled(NAMESPACE, values)}{bundle}/unload", query=query).value


def _clear_backlog(admin: AdminClient, values: Values) -> Any:
    subscription = f"/{component(values['subscription'])}" if values["subscription"] else ""
    return _with_bundle(f"/clearBacklog{subscription}", admin, values, "POST")


def _unsubscribe(admin: AdminClient, values: Values) -> Any:
    return _with_bundle(f"/unsubscribe/{component(values['subscription'])}", admin, values, "POST")


NAMESPACES = (
    Verb(name="list", help="Namespaces of a tenant.", path="/admin/v2/namespaces/{tenant}", example="public"),
    Verb(
        name="create",
        help="Create a namespace.",
        method="PUT",
        path=NAMESPACE,
        options=(
            option(
                "-b", "--bundles", type=int, metavar="N", help="Hash ranges that topics are placed by (default: 4)."
            ),
            option("-c", "--clusters", multiple=True, metavar="NAMES", help="Clusters that it lives on: a,b."),
        ),
        body=_new_body,
        done="created namespace {namespace}",
        example="acme/orders",
    ),
    Verb(
        name="delete",
        help="Delete a namespace that has no topics.",
        method="DELETE",
        path=NAMESPACE,
        done="deleted namespace {namespace}",
        example="acme/orders",
    ),
    Verb(name="policies", help="All policies of a namespace.", path=NAMESPACE, example="public/default"),
    Verb(
        name="topics",
        help="Topics of a namespace.",
        path=f"{NAMESPACE}/topics",
        options=(
            option(
                "-m",
                "--mode",
                type=click.Choice(("PERSISTENT", "NON_PERSISTENT", "ALL"), case_sensitive=False),
                default="ALL",
                help="Which (default: ALL).",
            ),
        ),
        query={"mode": "mode"},
        example="public/default",
    ),
    Verb(name="bundles", help="Hash ranges of a namespace.", path=f"{NAMESPACE}/bundles", example="public/default"),
    Verb(
        name="split-bundle",
        help="Halve a hash range.",
        method="PUT",
        path=f"{NAMESPACE}/{{bundle}}/split",
        options=(_bundle(required=True),),
        done="split {bundle}",
        example="acme/orders --bundle 0x00000000_0x40000000",
    ),
    Verb(
        name="unload",
        help="Close the topics of a namespace; their clients come back by themselves.",
        method="PUT",
        path=f"{NAMESPACE}/unload",
        options=(
            _bundle(),
            option("-d", "--destination-broker", metavar="BROKER", help="Who serves it then: an id or HOST:PORT."),
        ),
        run=_unload,
        done="unloaded {namespace}",
        example="acme/orders",
    ),
    Verb(
        name="clear-backlog",
        help="Count everything as acknowledged, for all subscriptions or one. Cannot be undone.",
        method="POST",
        path=f"{NAMESPACE}/clearBacklog",
        options=(
            option("-s", "--sub", "subscription", metavar="NAME", help="Only this subscription."),
            _bundle(),
            option(
                "-f",
                "--force",
                is_flag=True,
                help="No effect; accepted as pulsar-admin has it.",
            ),
        ),
        run=_clear_backlog,
        done="cleared the backlog of {namespace}",
        example="acme/orders --sub audit",
    ),
    Verb(
        name="unsubscribe",
        help="Delete a subscription from all topics of a namespace.",
        method="POST",
        path=f"{NAMESPACE}/unsubscribe/{{subscription}}",
        options=(_SUBSCRIPTION, _bundle()),
        run=_unsubscribe,
        done="deleted subscription {subscription}",
        example="acme/orders -s audit",
    ),
    # -- who may do what
    Verb(
        name="permissions",
        help="Who may do what in a namespace.",
        path=f"{NAMESPACE}/permissions",
        example="acme/orders",
    ),
    Verb(
        name="grant-permission",
        help="Let a role produce or consume in a namespace.",
        method="POST",
        path=f"{NAMESPACE}/permissions/{{role}}",
        options=(
            _ROLE,
            option("--actions", required=True, multiple=True, metavar="LIST", help="produce, consume: one or both."),
        ),
        body=lambda values: words_of(values["actions"]),
        done="granted to {role}",
        example="acme/orders --role alice --actions produce,consume",
    ),
    Verb(
        name="revoke-permission",
        help="Take a role's permissions in a namespace away.",
        method="DELETE",
        path=f"{NAMESPACE}/permissions/{{role}}",
        options=(_ROLE,),
        done="revoked from {role}",
        example="acme/orders --role alice",
    ),
    Verb(
        name="subscription-permission",
        help="Which roles subscriptions belong to.",
        path=f"{NAMESPACE}/permissions/subscription",
        example="acme/orders",
    ),
    Verb(
        name="grant-subscription-permission",
        help="Give a subscription to roles.",
        method="POST",
        path=f"{NAMESPACE}/permissions/subscription/{{subscription}}",
        options=(
            _SUBSCRIPTION,
            option("--roles", required=True, multiple=True, metavar="LIST", help="The roles: a,b."),
        ),
        body=lambda values: words_of(values["roles"]),
        done="granted {subscription}",
        example="acme/orders -s audit --roles alice",
    ),
    Verb(
        name="revoke-subscription-permission",
        help="Take a subscription from a role.",
        method="DELETE",
        path=f"{NAMESPACE}/permissions/{{subscription}}/{{role}}",
        options=(_SUBSCRIPTION, _ROLE),
        done="revoked {subscription} from {role}",
        example="acme/orders -s audit --role alice",
    ),
    # -- properties
    Verb(
        name="get-properties", help="Properties of a namespace.", path=f"{NAMESPACE}/properties", example="acme/orders"
    ),
    Verb(
        name="set-properties",
        help="Add properties.",
        method="PUT",
        path=f"{NAMESPACE}/properties",
        options=(option("-p", "--properties", multiple=True, required=True, metavar="A=B,C=D", help="What to add."),),
        body=lambda values: properties_of(values["properties"]),
        done="set properties of {namespace}",
        example="acme/orders -p owner=alice,tier=gold",
    ),
    Verb(
        name="clear-properties",
        help="Remove all properties.",
        method="DELETE",
        path=f"{NAMESPACE}/properties",
        done="cleared properties of {namespace}",
        example="acme/orders",
    ),
    Verb(
        name="get-property",
        help="One property.",
        path=f"{NAMESPACE}/property/{{key}}",
        options=(option("-k", "--key", required=True, metavar="NAME", help="Which."),),
        example="acme/orders -k owner",
    ),
    Verb(
        name="set-property",
        help="Set one property.",
        method="PUT",
        path=f"{NAMESPACE}/property/{{key}}/{{value}}",
        options=(
            option("-k", "--key", required=True, metavar="NAME", help="Which."),
            option("-v", "--value", required=True, metavar="TEXT", help="To what."),
        ),
        done="set {key} of {namespace}",
        example="acme/orders -k owner -v alice",
    ),
    Verb(
        name="remove-property",
        help="Remove one property; says what it was.",
        method="DELETE",
        path=f"{NAMESPACE}/property/{{key}}",
        options=(option("-k", "--key", required=True, metavar="NAME", help="Which."),),
        example="acme/orders -k owner",
    ),
    *POLICY_VERBS,
)

namespaces = group_of("namespaces", "Namespaces: topics with common policies and permissions.", NAMESPACES)
