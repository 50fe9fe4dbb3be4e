"""Settings: where each value comes from, what is refused, and the sample that lists them all."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dfc.cli.main import app
from dfc.config import SETTINGS, Settings, load_settings, sample_toml
from dfc.errors import ConfigError
from dfc.http.node import load_for, show_settings
from dfc.registry.gateway import EtcdPlace

ROOT = Path(__file__).parents[2]
TARGET = {"disks": "/d"}


@pytest.fixture
def write(tmp_path):
    """Writes a TOML file and gives its path."""

    def make(text: str) -> str:
        path = tmp_path / "dfc.toml"
        path.write_text(text)
        return str(path)

    return make


def test_defaults_are_those_of_the_table():
    loaded = load_settings("proxy")
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.origins.keys() == {name for name, setting in SETTINGS.items() if "proxy" in setting.roles}


def test_flags_win_over_variables_over_the_file_over_defaults(write):
    file = write('host = "10.0.0.1"\nport = 1\nconnections_max = 2\nlog_level = "debug"\n')
    environment = {"DFC_PORT": "3", "DFC_CONNECTIONS_MAX": "4", "HOME": "/", "DFC_URL": "x", "DFC_CONFIG": "y"}
    loaded = load_settings("proxy", file=file, environment=environment, flags={"port": "5", "host": None})
    settings = loaded.settings
    assert (settings.host, settings.port, settings.connections_max, settings.log_level) == ("10.0.0.1", 5, 4, "debug")
    assert loaded.origins["host"] == f"file {file}"
    assert loaded.origins["port"] == "flag --port"
    assert loaded.origins["connections_max"] == "variable DFC_CONNECTIONS_MAX"
    assert loaded.origins["token"] == "default"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "0", 0),
        ("access_log", "false", False),
        ("access_log", "1", True),
        ("drain_timeout_s", "1.5", 1.5),
        ("drain_timeout_s", "2", 2.0),
        ("body_min_rate_bytes_per_s", "64KiB", 65536),
        ("body_min_rate_bytes_per_s", "1.5 M", 1_572_864),
        ("body_min_rate_bytes_per_s", "7", 7),
        ("token", "abc", "abc"),
        ("token", "123", "123"),
    ],
)
def test_values_as_text(name, text, value):
    for given in ({"environment": {f"DFC_{name.upper()}": text}}, {"flags": {name: text}}):
        found = getattr(load_settings("proxy", **given).settings, name)
        assert (found, type(found)) == (value, type(value))


def test_lists_are_separated_by_commas(write):
    for given in (
        {"flags": {"disks": "/a, /b,"}},
        {"environment": {"DFC_DISKS": "/a,/b"}},
        {"file": write('disks = ["/a", "/b"]')},
    ):
        assert load_settings("target", **given).settings.disks == ("/a", "/b")


def test_more_names_of_a_node(write):
    for given in (
        {"environment": {"DFC_ALLOWED_HOSTS": "a.example, *"}},
        {"file": write('allowed_hosts = ["a.example", "*"]')},
    ):
        assert load_settings("proxy", **given).settings.allowed_hosts == ("a.example", "*")
    with pytest.raises(ConfigError, match="allowed_hosts"):
        load_settings("proxy", file=write('allowed_hosts = [""]'))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"environment": {"DFC_PROT": "1"}}, ("variable DFC_PROT", "'prot'")),
        ({"flags": {"prot": "1"}}, ("flag --prot", "'prot'")),
        ({"environment": {"DFC_PORT": "x"}}, ("variable DFC_PORT", "port")),
        ({"flags": {"port": "70000"}}, ("port", "70000")),
        ({"flags": {"port": "-1"}}, ("port",)),
        ({"flags": {"access_log": "maybe"}}, ("flag --access-log",)),
        ({"flags": {"log_level": "loud"}}, ("flag --log-level",)),
        ({"flags": {"drain_timeout_s": "-1"}}, ("drain_timeout_s",)),
        ({"flags": {"transfer_threads": "0"}}, ("transfer_threads",)),
        ({"flags": {"connections_max": "0"}}, ("connections_max",)),
        ({"flags": {"default_copies": "0"}}, ("default_copies", "1 to 8")),
        ({"flags": {"default_copies": "9"}}, ("default_copies", "9")),
        ({"flags": {"url": "example.com"}}, ("url", "http://HOST:PORT")),
        ({"flags": {"advertise_url": "ftp://a"}}, ("advertise_url",)),
        ({"flags": {"url": "http://[::1"}}, ("url", "http://HOST:PORT")),
        ({"flags": {"url": "http://a:99999"}}, ("url", "http://HOST:PORT")),
        ({"flags": {"url": "http://:80"}}, ("url", "http://HOST:PORT")),
        ({"flags": {"allowed_hosts": "http://a.example"}}, ("allowed_hosts", "'http://a.example'")),
        ({"flags": {"allowed_hosts": "a.example,b.example:80"}}, ("allowed_hosts", "'b.example:80'")),
        ({"environment": {"DFC_ALLOWED_HOSTS": "*.example"}}, ("allowed_hosts", "'*.example'")),
        ({"flags": {"allowed_hosts": "münze.example"}}, ("allowed_hosts", "ASCII")),
        ({"flags": {"allowed_hosts": "a b"}}, ("allowed_hosts",)),
        ({"flags": {"token": "a b"}}, ("token",)),
        ({"flags": {"token": "ä"}}, ("token",)),
        ({"flags": {"disks": "/d"}}, ("flag --disks", "target")),
        ({"file": "/no/such/file.toml"}, ("/no/such/file.toml",)),
    ],
)
def test_what_is_refused_says_where_it_came_from(given, words):
    with pytest.raises(ConfigError) as caught:
        load_settings("proxy", **given)
    assert all(word in caught.value.message for word in words)


@pytest.mark.parametrize(
    "text",
    ["prot = 1", "allowed_hosts = [1]", "[section]\nport = 1", "port = ", "port = true", 'port = "x"', "port = [1]", "\x00"],
)
def test_files_that_are_refused(write, text):
    file = write(text)
    with pytest.raises(ConfigError) as caught:
        load_settings("proxy", file=file)
    assert file in caught.value.message


def test_settings_of_another_role(write):
    """An error in a file or a flag; variables may be meant for another node of the machine."""
    assert load_settings("proxy", environment={"DFC_DISKS": "/d"}).settings.disks == ()
    for given in ({"file": write('disks = ["/d"]')}, {"flags": {"heartbeat_s": "1"}}):
        with pytest.raises(ConfigError):
            load_settings("proxy", **given)
    with pytest.raises(ConfigError):
        load_settings("target", flags={**TARGET, "auto_create": "0"})
    with pytest.raises(ConfigError, match="at least one directory"):
        load_settings("target")


def test_names_end_in_their_unit():
    for setting in SETTINGS.values():
        if setting.kind is float:
            assert setting.name.endswith("_s"), setting.name
    assert [field.name for field in fields(Settings)] == list(SETTINGS)
    assert all(setting.about.endswith(".") for setting in SETTINGS.values())


def test_loopback():
    for host, loopback in (("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)):
        assert Settings(host=host).is_loopback() == loopback


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"etcd_urls": "10.0.0.1:2379"}, "must list URLs like http://HOST:2379"),
        ({"etcd_urls": "http://root:secret@10.0.0.1:2379"}, "must not have a name and a password in them"),
        ({"etcd_prefix": "dfc"}, "etcd_prefix must be '/'"),
        ({"etcd_password": "secret"}, "etcd_user is not"),
        ({"etcd_cert": __file__}, "etcd_key is not"),
    ],
)
def test_settings_of_etcd(given, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_settings("proxy", environment={}, flags=given)


def test_secrets_are_not_shown():
    flags = {"token": "secret", "etcd_user": "root", "etcd_password": "secret"}
    loaded = load_settings("proxy", environment={}, flags=flags)
    rows = {row["name"]: row["value"] for row in show_settings(loaded)}
    assert (rows["token"], rows["etcd_user"], rows["etcd_password"]) == ("(set)", "root", "(set)")
    place = EtcdPlace.of(replace(loaded.settings, etcd_urls=("http://e:1",)))
    assert "secret" not in repr(place)


# --- the sample, and what commands show


def test_the_committed_sample_is_up_to_date():
    assert (ROOT / "deploy" / "dfc.toml").read_text() == sample_toml(), "run: dfc config sample > deploy/dfc.toml"


def test_the_command_prints_the_sample():
    assert CliRunner().invoke(app, ["config", "sample"]).stdout == sample_toml()


@pytest.mark.parametrize("role", ["proxy", "target"])
def test_the_command_shows_the_settings_of_a_role(role, monkeypatch):
    monkeypatch.setenv("DFC_TOKEN", "s3cret")
    more = ["--disks", "/d"] if role == "target" else []
    done = CliRunner().invoke(app, ["config", "show", "--role", role, "--json", "--port", "7", *more])
    assert done.exit_code == 0
    shown = {row["name"]: row for row in json.loads(done.stdout)}
    assert shown.keys() == {name for name, setting in SETTINGS.items() if role in setting.roles}
    assert (shown["port"]["value"], shown["port"]["origin"]) == (7, "flag --port")
    assert (shown["token"]["value"], shown["token"]["origin"]) == ("(set)", "variable DFC_TOKEN")


@pytest.mark.parametrize("role", ["proxy", "target"])
def test_the_sample_is_valid_and_has_every_default(write, role):
    lines = sample_toml().splitlines()
    settings = {
        line.partition(" ")[0][1:]: line[1:] for line in lines if line.startswith("#") and " = " in line and line[1] != " "
    }
    assert settings.keys() == SETTINGS.keys()
    mine = [line for name, line in settings.items() if role in SETTINGS[name].roles and name != "disks"]
    assert tomllib.loads("\n".join(mine)).keys() | {"disks"} >= {n for n, s in SETTINGS.items() if role in s.roles}
    flags = TARGET if role == "target" else {}
    loaded = load_settings(role, file=write("\n".join(mine)), flags=flags)
    assert loaded.settings == load_settings(role, flags=flags).settings


def test_node_flags(monkeypatch, write):
    monkeypatch.setenv("DFC_PORT", "7")
    loaded, supervised = load_for("target", ["--disks", "/a,/b", "--heartbeat-s", "2", "--supervised"])
    assert supervised
    assert (loaded.settings.disks, loaded.settings.heartbeat_s, loaded.settings.port) == (("/a", "/b"), 2.0, 7)
    assert not load_for("proxy", ["--config", write("port = 9")])[1]


def test_what_is_shown_hides_the_token():
    rows = {row["name"]: row for row in show_settings(load_settings("proxy", flags={"token": "s3cret"}))}
    assert (rows["token"]["value"], rows["token"]["origin"]) == ("(set)", "flag --token")
    assert "s3cret" not in str(rows)
    assert rows["port"] == {"name": "port", "value": 8080, "origin": "default"}
    assert {row["name"]: row for row in show_settings(load_settings("proxy"))}["token"]["value"] == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"jobs_scheduler": "coordinator", "host": "10.0.0.1"},
            "jobs_tls_ca is missing: jobs_scheduler = coordinator off loopback",
        ),
        ({"jobs_scheduler": "coordinator", "jobs_tls_ca": __file__}, "jobs_tls_cert is missing"),
        ({"jobs_scheduler": "tcp://10.0.0.1:8786"}, "must use tls://"),
        ({"jobs_scheduler": "tcp://0.0.0.0:8786"}, "must use tls://"),
        ({"jobs_scheduler": "tcp://node-1:8786"}, "must use tls://"),
        ({"jobs_scheduler": "tls://10.0.0.1:8786"}, "jobs_tls_ca is missing"),
        (
            {"jobs_scheduler": "tls://10.0.0.1:8786", "jobs_tls_ca": __file__, "jobs_tls_cert": __file__},
            "jobs_tls_key is missing",
        ),
        ({"jobs_scheduler": "tls://10.0.0.1:8786", "jobs_tls_ca": "/nowhere.pem"}, "cannot read /nowhere.pem"),
        ({"jobs_scheduler": "http://10.0.0.1:8786"}, "tls://HOST:PORT"),
        ({"jobs_scheduler": "10.0.0.1:8786"}, "tls://HOST:PORT"),
        ({"jobs_scheduler": "tls://10.0.0.1"}, "tls://HOST:PORT"),
        ({"jobs_scheduler": "tls://10.0.0.1:x"}, "tls://HOST:PORT"),
    ],
)
@pytest.mark.parametrize("role", ["proxy", "target"])
def test_a_scheduler_off_this_machine_wants_mutual_tls(given, said, role):
    flags = {**given, **({"disks": "/disk"} if role == "target" else {})}
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_settings(role, flags=flags)


def test_a_scheduler_on_loopback_may_do_without():
    for address in ("tcp://127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786"):
        assert load_settings("proxy", flags={"jobs_scheduler": address}).settings.jobs_scheduler == address
    files = dict.fromkeys(("jobs_tls_ca", "jobs_tls_cert", "jobs_tls_key"), __file__)
    assert load_settings("proxy", flags={"jobs_scheduler": "tls://10.0.0.1:8786", **files})


def test_a_target_may_have_several_addresses_of_its_proxy():
    def load(proxy_url):
        return load_settings("target", flags={"disks": "/d", "proxy_url": proxy_url}).settings.proxy_url

    assert load("http://a:1, http://b:2") == "http://a:1, http://b:2"
    for wrong, said in (
        ("http://a:1,b:2", "not 'b:2'"),
        ("http://a:1,http://b:x", "not 'http://b:x'"),
        (" , ", "no cluster address"),
        ("", "no cluster address"),
        (",".join(f"http://a:{port}" for port in range(1, 100)), "addresses: 99"),
    ):
        with pytest.raises(ConfigError, match=f"proxy_url.*{said}"):
            load(wrong)
