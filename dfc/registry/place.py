"""Where a registry in etcd is, and how one is let in."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dfc.config import Settings
from dfc.errors import OperatorError


class EtcdAccess(NamedTuple):
    """How etcd lets one in: the name and the password of a user, if it wants that, and PEM files for https: the authority that
    signs its certificates, and this node's own certificate with its key, if it wants to see one. Empty: not wanted."""

    user: str = ""
    password: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"EtcdAccess(user={self.user!r})"  # nowhere the password

    def context(self) -> ssl.SSLContext:
        """What a connection with TLS needs; reads the files. OperatorError."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except OSError as error:  # an SSLError is one
            files = ", ".join(each for each in (self.ca, self.cert, self.key) if each)
            raise OperatorError(f"the certificates for etcd cannot be used ({files}): {error}") from error
        return context


NO_ACCESS: Final = EtcdAccess()


@dataclass(frozen=True)
class EtcdPlace:
    """Where a registry in etcd is: the client URLs of the members, what its keys begin with, and how one is let in."""

    urls: Sequence[str]
    prefix: str
    access: EtcdAccess = NO_ACCESS

    @property
    def below(self) -> str:
        """The prefix with a slash at its end."""
        return self.prefix if self.prefix.endswith("/") else self.prefix + "/"

    @classmethod
    def of(cls, settings: Settings) -> EtcdPlace | None:
        """The place that settings name; None if they name none."""
        if not settings.etcd_urls:
            return None
        access = EtcdAccess(settings.etcd_user, settings.etcd_password, settings.etcd_ca, settings.etcd_cert, settings.etcd_key)
        return cls(settings.etcd_urls, settings.etcd_prefix, access)
