"""Authentication and authorization for one broker, with the grants that the catalog has now.

Without security settings every request passes at no cost.
"""

from __future__ import annotations

from typing import Protocol

from anabranch.security.authentication import Authenticator, Credentials, Identity, Unauthenticated
from anabranch.security.authorization import AccessPolicies, Action, Decision, Grants, Resource, Unauthorized, decide

_ASKS_NO_RECORD = (Action.OPEN, Action.SIGNED_IN, Action.SUPERVISE)


class AccessRecords(Protocol):
    """A missing record grants nothing, so neither call tells whether a tenant or namespace exists."""

    async def tenant_admins(self, tenant: str) -> frozenset[str]: ...

    async def grants(self, namespace: str) -> Grants: ...


class AccessControl:
    def __init__(
        self,
        records: AccessRecords | None = None,
        *,
        authenticator: Authenticator | None = None,
        superusers: frozenset[str] = frozenset(),
        authorizes: bool = False,
        refresh_seconds: float = 30.0,
    ) -> None:
        assert not authorizes or (records is not None and authenticator is not None)
        self._records = records
        self._authenticator = authenticator
        self._superusers = superusers
        self.authorizes = authorizes
        self.refresh_seconds = refresh_seconds
        self.denials = 0

    @property
    def authenticates(self) -> bool:
        return self._authenticator is not None

    @property
    def certificates_count(self) -> bool:
        """Whether client certificates authenticate."""
        return self._authenticator is not None and "tls" in self._authenticator.methods

    @property
    def sign_ins(self) -> tuple[int, int]:
        """(succeeded, failed) since the start."""
        found = self._authenticator
        return (0, 0) if found is None else (found.successes, found.failures)

    async def sign_in(self, credentials: Credentials, now_ms: int) -> Identity:
        """Raises Unauthenticated."""
        if self._authenticator is None:
            raise Unauthenticated("this broker has no authentication")
        return await self._authenticator.identify(credentials, now_ms)

    async def decide(self, identity: Identity | None, action: Action, resource: Resource) -> Decision:
        if not self.authorizes:
            return Decision(True, "authorization is off")
        role = None if identity is None else identity.role
        return decide(role, action, resource, await self._policies(role, action, resource))

    async def check(self, identity: Identity | None, action: Action, resource: Resource) -> None:
        """Raises Unauthorized, with the reason that the decision gave."""
        if not self.authorizes:
            return
        decision = await self.decide(identity, action, resource)
        if not decision.allowed:
            self.denials += 1
            raise Unauthorized(decision.reason)

    async def _policies(self, role: str | None, action: Action, resource: Resource) -> AccessPolicies:
        """Reads only what the decision can depend on."""
        assert self._records is not None
        if role is None or role in self._superusers or action in _ASKS_NO_RECORD:
            return AccessPolicies(self._superusers)
        admins = await self._records.tenant_admins(resource.tenant) if resource.tenant else frozenset()
        if role in admins or resource.namespace is None or action is Action.ADMINISTER:
            return AccessPolicies(self._superusers, admins)
        return AccessPolicies(self._superusers, admins, await self._records.grants(resource.namespace))
