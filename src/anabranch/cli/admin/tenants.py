"""`anabranch admin tenants|clusters`: their verbs, as data."""

from __future__ import annotations

from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.cli.admin.verb import Values, Verb, filled, group_of, option
from anabranch.cli.param_types import words_of

_TENANT = "/admin/v2/tenants/{tenant}"
_CLUSTER = "/admin/v2/clusters/{cluster}"


def _roles() -> click.Option:
    return option("-r", "--admin-roles", multiple=True, metavar="ROLES", help="Roles that administer it: a,b.")


def _clusters() -> click.Option:
    return option("-c", "--allowed-clusters", multiple=True, metavar="NAMES", help="Clusters it may use: a,b.")


def _create_tenant(admin: AdminClient, values: Values) -> Any:
    """Without a word about clusters it may use all of them, as with pulsar-admin."""
    clusters = words_of(values["allowed_clusters"]) or admin.get("/admin/v2/clusters")
    body = {"adminRoles": words_of(values["admin_roles"]), "allowedClusters": clusters}
    return admin.put(filled(_TENANT, values), body)


def _update_tenant(admin: AdminClient, values: Values) -> Any:
    """What is not given stays."""
    known = admin.get(filled(_TENANT, values))
    if values["admin_roles"]:
        known["adminRoles"] = words_of(values["admin_roles"])
    if values["allowed_clusters"]:
        known["allowedClusters"] = words_of(values["allowed_clusters"])
    return admin.post(filled(_TENANT, values), known)


def _addresses() -> tuple[click.Option, ...]:
    return (
        option("--url", metavar="URL", help="Of its HTTP: http://host:8080."),
        option("--url-secure", metavar="URL", help="Of its HTTPS."),
        option("--broker-url", metavar="URL", help="For clients: pulsar://host:6650."),
        option("--broker-url-secure", metavar="URL", help="For clients, with TLS."),
    )


def _cluster_body(values: Values) -> dict[str, Any]:
    keys = {
        "serviceUrl": "url",
        "serviceUrlTls": "url_secure",
        "brokerServiceUrl": "broker_url",
        "brokerServiceUrlTls": "broker_url_secure",
    }
    return {key: values[name] for key, name in keys.items() if values[name] is not None}


def _update_cluster(admin: AdminClient, values: Values) -> Any:
    path = filled(_CLUSTER, values)
    return admin.post(path, {**admin.get(path), **_cluster_body(values)})


TENANTS = (
    Verb(name="list", help="All tenants.", path="/admin/v2/tenants"),
    Verb(name="get", help="Admin roles and clusters of a tenant.", path=_TENANT, example="public"),
    Verb(
        name="create",
        help="Create a tenant.",
        method="PUT",
        path=_TENANT,
        options=(_roles(), _clusters()),
        run=_create_tenant,
        done="created tenant {tenant}",
        example="acme --admin-roles alice,bob",
    ),
    Verb(
        name="update",
        help="Change a tenant's admin roles or clusters; what is not given stays.",
        method="POST",
        path=_TENANT,
        options=(_roles(), _clusters()),
        run=_update_tenant,
        done="updated tenant {tenant}",
        example="acme --admin-roles alice",
    ),
    Verb(
        name="delete",
        help="Delete a tenant that has no namespaces.",
        method="DELETE",
        path=_TENANT,
        done="deleted tenant {tenant}",
        example="acme",
    ),
)
CLUSTERS = (
    Verb(name="list", help="All clusters.", path="/admin/v2/clusters"),
    Verb(name="get", help="Addresses of a cluster.", path=_CLUSTER, example="standalone"),
    Verb(
        name="create",
        help="Add a cluster.",
        method="PUT",
        path=_CLUSTER,
        options=_addresses(),
        body=_cluster_body,
        done="created cluster {cluster}",
        example="west --url http://west:8080 --broker-url pulsar://west:6650",
    ),
    Verb(
        name="update",
        help="Change a cluster's addresses; what is not given stays.",
        method="POST",
        path=_CLUSTER,
        options=_addresses(),
        run=_update_cluster,
        done="updated cluster {cluster}",
        example="west --url http://west:8080",
    ),
    Verb(
        name="delete",
        help="Delete an unused cluster.",
        method="DELETE",
        path=_CLUSTER,
        done="deleted cluster {cluster}",
        example="west",
    ),
)
tenants = group_of("tenants", "Tenants: who administers which namespaces.", TENANTS)
clusters = group_of("clusters", "Clusters: names with addresses.", CLUSTERS)
