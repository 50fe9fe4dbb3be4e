"""The face of plain URLs at a proxy: all paths that belong to no other face."""

from __future__ import annotations

from dfc.api.peers import ProxyPeers
from dfc.api.web.paths import ProxyPaths
from dfc.http.relay import Relay
from dfc.http.router import Authenticate, Face, Route
from dfc.proxy.uses import ProxyUses


def proxy_face(uses: ProxyUses, relay: Relay, peers: ProxyPeers, may_use: Authenticate) -> Face:
    """Make the face for `/{bucket}/{object…}` and directories."""
    path = ProxyPaths(uses, relay).path
    rest = Route("/", dict.fromkeys(("GET", "PUT", "DELETE"), path), query=None)
    return Face("web", [], may_use, rest=peers.route(rest))
