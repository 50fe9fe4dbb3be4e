"""A real etcd that speaks TLS, wants to see a certificate, and lets only one user in."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from etcd_process import READY_S, open_etcd
from ports import free_port
from registering import bucket

from dfc.errors import DfcError, OperatorError, Unavailable
from dfc.registry.changes import create_bucket
from dfc.registry.etcd import EtcdRegistry
from dfc.registry.gateway import EtcdAccess, EtcdGateway, EtcdPlace, EtcdRefused, put
from dfc.registry.offline import read_etcd_state

PASSWORD = "a password of its own"


@contextmanager
def one_etcd(directory: Path, access: EtcdAccess, scheme: str = "http", flags: Sequence[str] = ()) -> Iterator[str]:
    """A member with these flags; its URL."""
    program = shutil.which("etcd")
    assert program is not None, "the tests of many proxies need etcd: apt-get install etcd-server"
    client, peer = free_port(), f"http://127.0.0.1:{free_port()}"
    url = f"{scheme}://127.0.0.1:{client}"
    command = [program, "--data-dir", str(directory / "data"), "--log-level", "error"]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(_until_it_answers(url, access))
        yield url
    finally:
        process.kill()
        process.wait(10)


async def _until_it_answers(url: str, access: EtcdAccess) -> None:
    gateway = EtcdGateway([url], access)
    async with asyncio.timeout(READY_S):
        while True:
            try:
                await gateway.range("/")
                break
            except Unavailable:
                await asyncio.sleep(0.1)
    await gateway.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One with a password."""
    with one_etcd(tmp_path_factory.mktemp("etcd"), EtcdAccess()) as url:
        asyncio.run(_turn_on_passwords(url))
        yield url


async def _turn_on_passwords(url: str) -> None:
    gateway = EtcdGateway([url])
    for path, body in (
        ("/v3/auth/user/add", {"name": "root", "password": PASSWORD}),
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/enable", {}),
    ):
        await gateway._post(path, body)
    await gateway.close()


@pytest.fixture
async def registry(guarded: str, request: pytest.FixtureRequest) -> AsyncIterator[EtcdRegistry]:
    place = EtcdPlace([guarded], f"/{request.node.name}", EtcdAccess("root", PASSWORD))
    opened = await open_etcd(place, "p1")
    yield opened
    await opened.close()


async def test_a_user_with_a_password(guarded: str, registry: EtcdRegistry) -> None:
    state = await registry.change(create_bucket(bucket("b")))
    place = EtcdPlace([guarded], registry._prefix, EtcdAccess("root", PASSWORD))
    assert await read_etcd_state(place) == state
    other = await open_etcd(place, "p2")
    state = await other.change(create_bucket(bucket("c")))
    async with asyncio.timeout(20):
        assert await registry.watch(state.map.version - 1) == state.map
    await other.close()


async def test_what_lets_us_in_runs_out(registry: EtcdRegistry) -> None:
    """As when the member was started again: it does not know any more to whom it has given what."""
    for number in range(3):
        registry._gateway._token = "none.of.yours"
        state = await registry.change(create_bucket(bucket(f"b{number}")))
        assert len(state.map.buckets) == number + 1
    registry._gateway._token = "none.of.yours"
    lease = await registry.grant_lease("coordinator", "p1", 5)
    registry._gateway._token = "none.of.yours"
    assert await registry.renew_lease(lease)


@pytest.mark.parametrize("access", [EtcdAccess(), EtcdAccess("root", "guessed"), EtcdAccess("nobody", PASSWORD)])
async def test_nobody_else_is_let_in(guarded: str, access: EtcdAccess) -> None:
    gateway = EtcdGateway([guarded], access)
    with pytest.raises(EtcdRefused):
        await gateway.range("/")
    with pytest.raises(EtcdRefused):
        await gateway.transact([], [put("/x", b"")], [])
    async with aclosing(gateway.watch("/", "0", 1)) as changes:
        with pytest.raises(DfcError):
            await anext(changes)
    await gateway.close()
    with pytest.raises(OperatorError, match=r"etcd refuses: .*; see the settings etcd_user and etcd_password"):
        await open_etcd(EtcdPlace([guarded], "/none", access), "p1")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An authority made for this test, and a certificate signed by it."""
    place = tmp_path_factory.mktemp("tls")
    (place / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj"]
    sign = ["openssl", "x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
    for command in (
        [*new, "/CN=authority", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2"],
        [*new, "/CN=node", "-keyout", "node.key", "-out", "node.csr"],
        [*sign, "-extfile", "names", "-out", "node.pem"],
    ):
        subprocess.run(command, cwd=place, check=True, capture_output=True)
    return {"ca": str(place / "ca.pem"), "cert": str(place / "node.pem"), "key": str(place / "node.key")}


def test_tls_with_certificates_of_both_sides(tmp_path: Path, certificates: dict[str, str]) -> None:
    access = EtcdAccess(**certificates)
    flags = ["--cert-file", access.cert, "--key-file", access.key, "--trusted-ca-file", access.ca, "--client-cert-auth"]

    async def use(url: str) -> Any:
        registry = await open_etcd(EtcdPlace([url], "/tls", access), "p1")
        state = await registry.change(create_bucket(bucket("b")))
        await registry.watch(state.map.version - 1)
        await registry.close()
        for other in (EtcdAccess(), EtcdAccess(ca=access.ca)):
            gateway = EtcdGateway([url], other)
            with pytest.raises(Unavailable, match="etcd"):
                await gateway.range("/")
            await gateway.close()
        return state

    with one_etcd(tmp_path, access, "https", flags) as url:
        assert [each.name for each in asyncio.run(use(url)).map.buckets] == ["b"]


def test_certificates_that_cannot_be_used(tmp_path: Path, certificates: dict[str, str]) -> None:
    (tmp_path / "empty").touch()
    for access in (
        EtcdAccess(ca=str(tmp_path / "none")),
        EtcdAccess(ca=certificates["ca"], cert=str(tmp_path / "empty"), key=certificates["key"]),
    ):
        with pytest.raises(OperatorError, match="the certificates for etcd cannot be used"):
            EtcdGateway(["https://127.0.0.1:1"], access)
    EtcdGateway(["http://127.0.0.1:1"], EtcdAccess(ca=str(tmp_path / "none")))  # not wanted
