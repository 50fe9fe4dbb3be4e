"""The use cases of a proxy, bundled for its faces."""

from __future__ import annotations

from dataclasses import dataclass

from dfc.proxy.admin import Administration
from dfc.proxy.batch import ProxyBatches
from dfc.proxy.buckets import Buckets
from dfc.proxy.checking import ClusterChecks
from dfc.proxy.jobs.operations import Operations
from dfc.proxy.jobs.reigns import JobUses
from dfc.proxy.keys import SampleKeys
from dfc.proxy.listing import Listings
from dfc.proxy.objects import Objects
from dfc.proxy.others.details import NodeDetails
from dfc.proxy.others.rates import ClusterRates
from dfc.proxy.search.service import SampleSearch
from dfc.proxy.shardviews import ShardViews


@dataclass(frozen=True)
class ProxyUses:
    """The use cases of one proxy."""

    objects: Objects
    buckets: Buckets
    listings: Listings
    keys: SampleKeys
    batches: ProxyBatches
    jobs: JobUses
    admin: Administration
    checks: ClusterChecks
    shards: ShardViews
    operations: Operations
    rates: ClusterRates
    nodes: NodeDetails
    search: SampleSearch
