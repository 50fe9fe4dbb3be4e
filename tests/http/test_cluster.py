"""Health, the map, metrics and scrubbing, as operators and their tools ask for them."""

from __future__ import annotations

import os
import re
import time

import msgspec
import pytest
from harness import owner_of, wait_for
from prometheus_client.parser import text_string_to_metric_families

from dfc.placement.map import ClusterMap


def test_health(http, nodes):
    proxy = http.get("/v1/health")
    assert proxy.status_code == 200
    assert proxy.json().keys() == {"ready", "role", "id", "map_version", "targets"}
    assert (proxy.json()["ready"], proxy.json()["role"], proxy.json()["targets"]) == (True, "proxy", {"up": 4})
    for node in nodes.map.targets():
        target = http.get(f"{node.url}/v1/health").json()
        assert target.keys() == {"ready", "role", "id", "map_version", "state", "leased"}
        assert (target["ready"], target["role"], target["id"], target["state"]) == (True, "target", node.id, "up")


def test_the_map(http, url, bucket):
    http.put(f"/v1/buckets/{bucket}", json={"durability": "relaxed"})

    def described():
        found = http.get(f"{url}/v1/cluster").json()
        used = all(disk["used"] for node in found["nodes"] for disk in node["disks"])
        return found if used and any(entry["name"] == bucket for entry in found["buckets"]) else None

    found = wait_for(described, "the bucket and the use of all disks in the map")  # heartbeats bring it
    assert found.keys() == {
        "cluster_id", "version", "step", "nodes", "buckets", "layouts", "slices", "rebalance", "removed_disks",
    }  # fmt: skip
    assert len(found["nodes"]) == 4
    for node in found["nodes"]:
        assert node.keys() == {
            "id", "number", "role", "url", "advertise_url", "state", "last_heartbeat", "disks", "labels", "expected_by",
            "protocol",
        }  # fmt: skip
        assert (node["role"], node["state"]) == ("target", "up")
        assert node["labels"] == {"zone": "", "host": ""}
        assert len(node["disks"]) == 2
        for disk in node["disks"]:
            use = {"capacity", "used", "objects", "file_system"}
            fixed = {
                "id", "weight", "wanted_weight", "removing", "group", "domain", "state", "use", "incarnation", "down_step",
                "out_of_sync_with", "compare", "evicted", "removed",
            }  # fmt: skip
            assert disk.keys() == fixed | use
            assert disk["group"] == node["id"]
            assert disk["state"] == "up"
            assert disk["weight"] > 0
            assert disk["capacity"] > disk["used"] > 0
    (mine,) = [entry for entry in found["buckets"] if entry["name"] == bucket]
    numbers = {"copies", "written", "wanted", "min_copies"}
    assert mine.keys() == {"id", "name", "durability", "state", "created", "is_moving"} | numbers
    assert (mine["copies"], mine["durability"], mine["state"]) == (1, "relaxed", "active")
    assert owner_of(ClusterMap.decode(http.get(f"{url}/v1/cluster").content), bucket, "x").node.state == "up"


def test_the_map_as_msgpack(http, url):
    packed = http.get(f"{url}/v1/cluster", headers={"Accept": "application/msgpack"})
    assert packed.headers["Content-Type"] == "application/msgpack"
    assert msgspec.msgpack.decode(packed.content, type=ClusterMap).cluster_id == http.get("/v1/cluster").json()["cluster_id"]


def test_heartbeats_bring_the_use_of_disks(http, bucket):
    for number in range(8):
        http.put(f"/{bucket}/{number}", content=b"abc")

    def told():
        nodes = http.get("/v1/cluster").json()["nodes"]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", node["last_heartbeat"]) for node in nodes)
        counted = sum(entry["objects"] * entry["copies"] for entry in http.get("/v1/buckets").json()["buckets"])
        return sum(disk["objects"] for node in nodes for disk in node["disks"]) == counted >= 8

    wait_for(told, "heartbeats")


def metrics(http, url):
    """(name, labels) → value of every sample."""
    answer = http.get(f"{url}/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_count_requests_and_bytes(http, nodes, bucket):
    body = os.urandom(300_000)
    http.put(f"/{bucket}/x", content=body)
    for url in (nodes.proxy, nodes.owner(bucket, "x")):
        before = metrics(http, url)
        for _ in range(3):
            assert http.get(f"{url}/{bucket}/x").content == body
        assert http.get(f"{url}/{bucket}/missing").status_code == 404
        assert http.put(f"{url}/{bucket}/x", content=body).status_code == 200
        after = metrics(http, url)

        def grown(name, before=before, after=after, **labels):
            key = (name, frozenset(labels.items()))
            return after[key] - before.get(key, 0)

        assert grown("dfc_http_requests_total", method="GET", route="/", status="200") == 3
        assert grown("dfc_http_requests_total", method="PUT", route="/", status="200") == 1
        assert grown("dfc_http_requests_total", method="GET", route="/", status="404") >= (url == nodes.proxy)
        assert grown("dfc_http_sent_bytes_total", route="/") >= 3 * len(body)
        assert grown("dfc_http_received_bytes_total", route="/") == len(body)
        assert grown("dfc_http_request_seconds_count", route="/") == 5
        assert grown("dfc_http_request_seconds_bucket", route="/", le="+Inf") == 5
        assert grown("dfc_http_request_seconds_sum", route="/") > 0
        assert after["dfc_http_connections", frozenset()] >= 1


def test_metrics_of_a_proxy(http, nodes):
    found = metrics(http, nodes.proxy)
    assert found["dfc_nodes", frozenset({("state", "up")})] == 4
    assert found["dfc_nodes", frozenset({("state", "down")})] == 0
    assert found["dfc_map_version", frozenset()] >= 1
    assert found["process_resident_memory_bytes", frozenset()] > 0


def test_metrics_of_a_target(http, nodes, bucket, make_tar):
    http.put(f"/{bucket}/x.tar", content=make_tar([("a.txt", b"1")]))
    owner = owner_of(nodes.map, bucket, "x.tar")
    found = metrics(http, owner.node.url)
    disk = frozenset({("disk", owner.disk.id)})
    for name in ("dfc_disk_puts_total", "dfc_disk_put_bytes_total", "dfc_disk_fsyncs_total", "dfc_catalog_commits_total"):
        assert found[name, disk] > 0
    assert found["dfc_disk_up", disk] == 1
    assert found["dfc_catalog_objects", disk] >= 1
    assert found["dfc_disk_capacity_bytes", disk] > found["dfc_disk_free_bytes", disk] > 0
    assert found["dfc_catalog_quarantined_rows", disk] == 0


@pytest.fixture(scope="module")
def small(start_cluster):
    """One target that is advertised under another name than nodes use, and scrubs at full speed."""
    environment = {"DFC_SCRUB_RATE_BYTES_PER_S": "0", "DFC_ADVERTISE_URL": "http://localhost:0"}
    return start_cluster(targets=1, disks=2, environment=environment)


def test_redirects_name_the_advertised_url_and_nodes_go_by_the_other(small, http):
    (target,) = small.map()["nodes"]
    assert target["url"].startswith("http://127.0.0.1:")
    assert target["advertise_url"] == target["url"].replace("127.0.0.1", "localhost")
    answer = http.put(f"{small.url}/v1/objects/r/x", content=b"abc")
    assert (answer.status_code, answer.headers["Location"]) == (307, f"{target['advertise_url']}/v1/objects/r/x")
    assert http.put(f"{small.url}/r/x", content=b"abc").status_code == 201
    assert http.get(f"{small.url}/v1/objects/r/x", follow_redirects=True).content == b"abc"


def test_moves_are_paused_and_slowed_down(small, http, error_of):
    def say(**said):
        return http.post(f"{small.url}/v1/cluster/rebalance", json=said)

    assert say().json() == {"paused": False, "rate_bytes_per_s": 64 << 20}
    assert say(paused=True).json() == {"paused": True, "rate_bytes_per_s": 64 << 20}
    assert say(rate_bytes_per_s=0).json() == {"paused": True, "rate_bytes_per_s": 0}
    version = http.get(f"{small.url}/v1/cluster").json()["version"]
    for wrong in (
        {"rate_bytes_per_s": -1},
        {"rate_bytes_per_s": 1.5},
        {"rate_bytes_per_s": 1 << 60},
        {"paused": "yes"},
        {"rate": 1},
    ):
        error_of(say(**wrong), 400, "bad_request")
    found = http.get(f"{small.url}/v1/cluster").json()
    assert (found["version"], found["rebalance"]) == (version, {"paused": True, "rate_bytes_per_s": 0})
    assert http.get(f"{small.url}/v1/cluster/rebalance").json() == {"paused": True, "rate_bytes_per_s": 0}
    assert http.get(f"{small.url}/v1/cluster/problems").json() == {"problems": []}, "there is nothing to move"
    assert say(paused=False, rate_bytes_per_s=64 << 20).json() == {"paused": False, "rate_bytes_per_s": 64 << 20}


def test_a_target_is_expected_to_be_down(small, http, error_of):
    node = http.get(f"{small.url}/v1/cluster").json()["nodes"][0]["id"]
    url = f"{small.url}/v1/cluster/nodes/{node}"

    def expected():
        return http.get(f"{small.url}/v1/cluster").json()["nodes"][0]["expected_by"]

    said = http.patch(url, json={"expect_down_s": 600})
    assert (said.status_code, said.json().keys()) == (200, {"expected_by"})
    assert 590 < expected() - time.time() < 610
    for wrong in ({}, {"expect_down_s": -1}, {"expect_down_s": 10**9}, {"expect_down_s": 5, "state": "active"}):
        error_of(http.patch(url, json=wrong), 400, "bad_request")
    error_of(http.patch(f"{small.url}/v1/cluster/nodes/nobody", json={"expect_down_s": 5}), 404, "not_found")
    error_of(http.patch(f"{small.url}/v1/cluster/disks/nothing", json={"expect_down_s": 5}), 400, "bad_request")
    assert 590 < expected() - time.time() < 610
    http.patch(url, json={"expect_down_s": 0})
    assert expected() == 0


def test_weights_of_disks(small, http, error_of):
    cluster = f"{small.url}/v1/cluster"

    def weights():
        nodes = http.get(cluster).json()["nodes"]
        return {disk["id"]: disk["wanted_weight"] or disk["weight"] for node in nodes for disk in node["disks"]}

    node = http.get(cluster).json()["nodes"][0]
    disk, joined = node["disks"][0]["id"], node["disks"][0]["weight"]
    before, version = weights(), http.get(cluster).json()["version"]
    for subject in (f"{cluster}/disks/{disk}", f"{cluster}/nodes/{node['id']}"):
        for wrong in (0, -1, 1e10, 1e-7, "1", True, [1]):
            error_of(http.patch(subject, json={"weight": wrong}), 400, "bad_request")
        for wrong in (
            b'{"weight": NaN}',
            b'{"weight": 1e400}',
            b"{}",
            b'{"weight": 1, "state": "active"}',
            b'{"weight": null}',
        ):
            error_of(http.patch(subject, content=wrong), 400, "bad_request")
    for nothing in ("disks/nothing", "nodes/nobody", f"disks/{node['id']}", f"nodes/{disk}"):
        error_of(http.patch(f"{cluster}/{nothing}", json={"weight": 2}), 404, "not_found")
    assert (weights(), http.get(cluster).json()["version"]) == (before, version)
    said = http.patch(f"{cluster}/disks/{disk}", json={"weight": 2})
    assert (said.status_code, said.json()) == (202, {"disks": [disk], "weights": {disk: 2.0}})
    assert weights() == {**before, disk: 2.0}
    total = sum(each["wanted_weight"] or each["weight"] for each in http.get(cluster).json()["nodes"][0]["disks"])
    said = http.patch(f"{cluster}/nodes/{node['id']}", json={"weight": total / 2})
    assert said.status_code == 202
    assert sum(said.json()["weights"].values()) == pytest.approx(total / 2)
    assert said.json()["weights"][disk] == pytest.approx(1.0)
    for each in node["disks"]:
        http.patch(f"{cluster}/disks/{each['id']}", json={"weight": each["weight"]})
    assert (weights()[disk], weights()) == (joined, before)
    assert http.get(cluster).json()["nodes"][0]["disks"][0]["wanted_weight"] == 0, "that with which it joined"


def test_scrubbing_finds_a_flipped_bit(small, http, error_of):
    body = os.urandom(200_000)
    for name in ("good", "bad"):
        assert http.put(f"{small.url}/b/{name}", content=body).status_code == 201
    (blob,) = small.directory.glob("target-*/disk-*/objects/*/*/bad@*")
    with blob.open("r+b") as file:
        file.seek(1000)
        file.write(bytes([body[1000] ^ 1]))
    assert http.get(f"{small.url}/v1/cluster/scrub").json().keys() == {"disks"}
    started = http.post(f"{small.url}/v1/cluster/scrub")
    assert (started.status_code, started.json()) == (202, {"started": True})

    def found():
        disks = http.get(f"{small.url}/v1/cluster/scrub").json()["disks"]
        assert all(
            disk.keys() == {"disk", "node", "state", "bytes_done", "bytes_total", "errors", "repaired", "quarantined"}
            for disk in disks
        )
        return [(entry["bucket"], entry["object"]) for disk in disks for entry in disk["quarantined"]]

    assert wait_for(found, "the scrubber") == [("b", "bad")]
    error_of(http.get(f"{small.url}/b/bad"), 500, "object_corrupt")
    assert http.head(f"{small.url}/b/bad").status_code == 500
    assert http.get(f"{small.url}/b/good").content == body
    assert http.put(f"{small.url}/b/bad", content=body).status_code == 200  # an upload makes it good again
    assert http.get(f"{small.url}/b/bad").content == body


def test_copies_are_compared(start_cluster, http, error_of):
    pair = start_cluster(targets=2)
    url = f"{pair.url}/v1/cluster/check"
    nothing = {"check": "", "state": "none", "began": "", "buckets": [], "disks": []}
    assert {key: value for key, value in http.get(url).json().items() if key != "totals"} == nothing
    assert http.put(f"{pair.url}/v1/buckets/pairs", json={"copies": 2}).status_code == 201
    for number in range(20):
        assert http.put(f"{pair.url}/pairs/o{number}", content=b"one").status_code == 201
    error_of(http.post(url, json={"buckets": ["never"]}), 404, "bucket_not_found")
    error_of(http.post(url, json={"bucket": "pairs"}), 400, "bad_request")
    error_of(http.post(url, json={"buckets": ["pairs"] * 1001}), 400, "bad_request")
    began = http.post(url, json={"buckets": ["pairs"]})
    assert began.status_code == 202

    def done():
        found = http.get(url).json()
        assert found["check"] == began.json()["check"]
        return found if found["state"] == "done" else None

    found = wait_for(done, "the comparison")
    assert found["buckets"] == ["pairs"]
    wanted = {"pairs": 2, "pairs_compared": 2, "rows": 20, "differing": 0}
    assert {key: found["totals"][key] for key in wanted} == wanted
    assert [disk["state"] for disk in found["disks"]] == ["done", "done"]
    compared = [each for disk in found["disks"] for each in disk["pairs"]]
    assert {each["replica"] for each in compared} == {disk["disk"] for disk in found["disks"]}
    assert all(each["not_compared"] == "" for each in compared)
