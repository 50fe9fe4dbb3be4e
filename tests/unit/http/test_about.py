"""What a node says of itself: how it is set, and never a secret."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import msgspec
import pytest

from dfc.config import SECRETS, SETTINGS, Role, Settings, load_settings
from dfc.http.node import DiskInfo, NodeInfo, node_info, show_settings

SECRET_NAME = re.compile(r"token|passw|secret|credential|cookie|(^|_)key($|_)")
HIDDEN = "5ecret-that-nobody-may-read"


def described(role: Role, settings: Settings, origins: dict[str, str] | None = None) -> NodeInfo:
    return node_info("n", role, settings, origins or {}, ("http://own:1", "http://all:2"), 3, [])


def could_be_secret(name: str) -> bool:
    """By its name and type: a text; but for the path of a file, and what only says when a token is wanted."""
    setting = SETTINGS[name]
    return bool(SECRET_NAME.search(name)) and setting.kind is not bool and not setting.about.startswith("PEM file")


def test_every_setting_that_is_called_like_a_secret_is_one() -> None:
    assert {name for name in SETTINGS if could_be_secret(name)} == SECRETS
    assert could_be_secret("token")
    assert not could_be_secret("etcd_key")  # a path


@pytest.mark.parametrize("role", ["proxy", "target"])
def test_no_secret_is_told(role: Role) -> None:
    """Every text is given, as the secret itself if it is one, and else as the URL with a password, which some may be."""
    texts = {
        name: (f"http://user:{HIDDEN}@host:1",) if setting.kind == tuple[str, ...] else
        HIDDEN if name in SECRETS else f"tls://user:{HIDDEN}@host:1,http://{HIDDEN}@other:2"
        for name, setting in SETTINGS.items()
        if setting.kind in (str, tuple[str, ...])
    }  # fmt: skip
    assert texts.keys() >= SECRETS | {"proxy_url", "etcd_urls", "jobs_scheduler"}
    found = described(role, Settings(**texts))
    for encoded in (msgspec.json.encode(found), msgspec.msgpack.encode(found)):
        assert HIDDEN.encode() not in encoded
    shown = {each.name: each.value for each in found.settings}
    assert shown["token"] == "(set)"
    assert "host:1" in str(shown["jobs_scheduler"])
    assert {each.name for each in described(role, Settings()).settings if each.value == "(set)"} == set()


def test_settings_come_with_their_origins(tmp_path: Any) -> None:
    file = tmp_path / "dfc.toml"
    file.write_text("heartbeat_s = 2\n")
    loaded = load_settings(
        "target", file=str(file), environment={"DFC_LOG_LEVEL": "debug"}, flags={"disks": ("/a",), "token": HIDDEN}
    )
    rows = {each.name: each for each in described("target", loaded.settings, dict(loaded.origins)).settings}
    assert {name: (rows[name].value, rows[name].origin) for name in ("heartbeat_s", "log_level", "disks", "token", "port")} == {
        "heartbeat_s": (2.0, f"file {file}"),
        "log_level": ("debug", "variable DFC_LOG_LEVEL"),
        "disks": (("/a",), "flag --disks"),
        "token": ("(set)", "flag --token"),
        "port": (8080, "default"),
    }
    assert rows.keys() == {name for name, setting in SETTINGS.items() if "target" in setting.roles}
    assert {each.origin for each in described("target", loaded.settings).settings} == {"program"}  # nobody has said


def test_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found = described("proxy", Settings())
    assert (found.id, found.role, found.pid) == ("n", "proxy", os.getpid())
    assert (found.url, found.advertise_url) == ("http://own:1", "http://all:2")
    assert found.memory_bytes > 10_000_000
    files = [open(os.devnull) for _ in range(7)]
    after = described("proxy", Settings())
    for file in files:
        file.close()
    assert after.descriptors == found.descriptors + 7
    assert after.uptime_s >= found.uptime_s >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z", found.started)


def test_it_comes_back_from_its_message() -> None:
    disk = DiskInfo(id="d", path="/x", state="failed", failure="EIO")
    found = msgspec.structs.replace(described("target", Settings()), disks=[disk])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=NodeInfo).disks == [disk]


def test_config_show_hides_passwords_in_urls() -> None:
    loaded = load_settings("target", flags={"disks": "/a", "proxy_url": "http://me:hush@host:1,http://other:2"})
    rows = {row["name"]: row["value"] for row in show_settings(loaded)}
    assert rows["proxy_url"] == "http://(set)@host:1,http://other:2"
    assert json.dumps(rows)
