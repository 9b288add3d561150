"""How a connection is let in: TLS, digest authentication, and the access list of the nodes that it creates."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from anabranch.zookeeper.jute import OPEN_ACL, digest_acl


@dataclass(frozen=True, slots=True)
class Access:
    """`digest` is `user:password`. A client with it creates nodes that only the same user can use."""

    tls: ssl.SSLContext | None = None
    server_name: str = ""  # in the server's certificate, if it is not the host
    digest: str = field(default="", repr=False)

    @property
    def acl(self) -> bytes:
        """Of created nodes. It names the user and not "all identities of the creator", because a client certificate is
        one of these: everything signed by the same authority would have access."""
        return digest_acl(self.digest) if self.digest else OPEN_ACL


OPEN_ACCESS = Access()
