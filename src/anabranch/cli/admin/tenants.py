"""`anabranch admin tenants|clusters|ns-isolation-policy`: their verbs, as data."""

from __future__ import annotations

from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.cli.admin.verb import Values, Verb, filled, group_of, option
from anabranch.cli.param_types import words_of

_TENANT = "/admin/v2/tenants/{tenant}"
_CLUSTER = "/admin/v2/clusters/{cluster}"


_DOMAIN = f"{_CLUSTER}/failureDomains/{{domain}}"
_ISOLATION = f"{_CLUSTER}/namespaceIsolationPolicies"


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


def _domain() -> click.Option:
    return option("--domain-name", "domain", required=True, metavar="NAME", help="Name of the failure domain.")


def _policy() -> click.Option:
    return option("--policy-name", "policy", required=True, metavar="NAME", help="Name of the isolation policy.")


def _isolation_body(values: Values) -> dict[str, Any]:
    given = (word.partition("=") for word in words_of(values["parameters"]))
    return {
        **{key: words_of(values[key]) for key in ("namespaces", "primary", "secondary")},
        "auto_failover_policy": {
            "policy_type": values["kind"],
            "parameters": {key: value for key, _, value in given},
        },
    }


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
CLUSTERS: tuple[Verb, ...] = (
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
CLUSTERS += (
    Verb(
        name="get-peer-clusters",
        help="Peers of a cluster (kept for tools, without effect).",
        path=f"{_CLUSTER}/peers",
        example="standalone",
    ),
    Verb(
        name="update-peer-clusters",
        help="Replace the peers of a cluster.",
        method="POST",
        path=f"{_CLUSTER}/peers",
        options=(option("--peer-clusters", "peers", multiple=True, required=True, metavar="NAMES", help="a,b."),),
        body=lambda values: words_of(values["peers"]),
        done="cluster {cluster} has new peers",
        example="standalone --peer-clusters west",
    ),
    Verb(
        name="list-failure-domains",
        help="Failure domains of a cluster (kept for tools, without effect).",
        path=f"{_CLUSTER}/failureDomains",
        example="standalone",
    ),
    Verb(
        name="get-failure-domain",
        help="One failure domain.",
        path=_DOMAIN,
        options=(_domain(),),
        example="standalone --domain-name rack-1",
    ),
    *(
        Verb(
            name=f"{verb}-failure-domain",
            help=f"{verb.capitalize()} a failure domain.",
            method="POST",
            path=_DOMAIN,
            options=(
                _domain(),
                option("--broker-list", "brokers", multiple=True, metavar="NAMES", help="a:8080,b:8080."),
            ),
            body=lambda values: {"brokers": words_of(values["brokers"])},
            done=f"{verb}d failure domain {{domain}}",
            example="standalone --domain-name rack-1 --broker-list a:8080,b:8080",
        )
        for verb in ("create", "update")
    ),
    Verb(
        name="delete-failure-domain",
        help="Delete a failure domain.",
        method="DELETE",
        path=_DOMAIN,
        options=(_domain(),),
        done="deleted failure domain {domain}",
        example="standalone --domain-name rack-1",
    ),
)
ISOLATION_POLICIES = (
    Verb(name="list", help="Isolation policies of a cluster.", path=_ISOLATION, example="standalone"),
    Verb(
        name="get",
        help="One isolation policy.",
        path=f"{_ISOLATION}/{{policy}}",
        options=(_policy(),),
        example="standalone --policy-name p",
    ),
    Verb(
        name="set",
        help="Create or replace an isolation policy.",
        method="POST",
        path=f"{_ISOLATION}/{{policy}}",
        options=(
            _policy(),
            option("--namespaces", multiple=True, required=True, metavar="EXPRESSIONS", help="Namespaces: a,b."),
            option("--primary", multiple=True, required=True, metavar="EXPRESSIONS", help="Brokers: a,b."),
            option("--secondary", multiple=True, metavar="EXPRESSIONS", help="Brokers beside them: a,b."),
            option("--auto-failover-policy-type", "kind", default="min_available", metavar="NAME", help="Its kind."),
            option("--auto-failover-policy-params", "parameters", multiple=True, metavar="KEY=VALUE", help="a=1,b=2."),
        ),
        body=_isolation_body,
        done="set isolation policy {policy}",
        example="standalone --policy-name p --namespaces acme/.* --primary broker-1.*",
    ),
    Verb(
        name="delete",
        help="Delete an isolation policy.",
        method="DELETE",
        path=f"{_ISOLATION}/{{policy}}",
        options=(_policy(),),
        done="deleted isolation policy {policy}",
        example="standalone --policy-name p",
    ),
    Verb(
        name="brokers",
        help="Brokers and the policies that name them.",
        path=f"{_ISOLATION}/brokers",
        example="standalone",
    ),
    Verb(
        name="broker",
        help="One broker and the policies that name it.",
        path=f"{_ISOLATION}/brokers/{{broker}}",
        options=(option("--broker", required=True, metavar="HOST:PORT", help="The broker."),),
        example="standalone --broker 127.0.0.1:8080",
    ),
)
tenants = group_of("tenants", "Tenants: who administers which namespaces.", TENANTS)
clusters = group_of("clusters", "Clusters: names with addresses.", CLUSTERS)
isolation_policies = group_of(
    "ns-isolation-policy", "Isolation policies of namespaces (kept for tools, without effect).", ISOLATION_POLICIES
)
