"""Settings of a node, from flags, `DFC_…` variables, a TOML file and defaults, in this order of precedence.

Each field of `Settings` is a setting: its name is the TOML key, `DFC_NAME` in upper case the variable, and
`--name-with-dashes` the flag. An unknown key or variable, or a value of the wrong type, is a ConfigError.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints
from urllib.parse import urlsplit

import msgspec

from dfc.addresses import ANY_HOST, host_name, is_http_url, split_addresses
from dfc.errors import BadRequest, ConfigError
from dfc.limits import COPIES_MAX, GIB, KIB, MIB
from dfc.wire import DEFAULT_URL

Role = Literal["proxy", "target"]
ENVIRONMENT_PREFIX: Final = "DFC_"
COORDINATOR: Final = "coordinator"  # as `jobs_scheduler`
SECRETS: Final = frozenset(("token", "etcd_password"))  # settings whose values are never shown
# Variables that other parts of DFC read; they are not settings of a node.
FOREIGN_VARIABLES: Final = frozenset(("DFC_URL", "DFC_CONFIG"))
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_LABEL: Final = re.compile(r"[A-Za-z0-9._-]{0,64}")
_PREFIX: Final = re.compile(r"/[A-Za-z0-9._/-]{1,127}")
_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address or `localhost`, so that only this machine reaches it."""
    return host in _LOOPBACK or host.startswith("127.")


def _setting(default: Any, about: str, roles: tuple[Role, ...] = ("proxy", "target")) -> Any:
    return field(default=default, metadata={"about": about, "roles": roles})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings with their defaults. Names end in their unit."""

    host: str = _setting("127.0.0.1", "Address to listen on. Set a token for anything but loopback.")
    port: int = _setting(8080, "Port to listen on; 0 picks a free one.")
    dir: str = _setting(
        "", "Directory for the node's own state; if empty, ./dfc-data for a proxy, the first disk for a target."
    )
    url: str = _setting("", "URL by which other nodes reach this one; if empty, made from host and port.")
    advertise_url: str = _setting("", "URL by which clients reach this node, used in redirects; if empty, the same as url.")
    allowed_hosts: tuple[str, ...] = _setting((), "More host names that this node answers to (421 for others); * for any.")
    token: str = _setting("", "Bearer token for writes, administration and calls between nodes; if empty, none is required.")
    token_for_reads: bool = _setting(False, "Require the token for reads, too.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "Log only events of this level or above.")
    access_log: bool = _setting(True, "Log one line per request to standard error.")

    connections_max: int = _setting(4096, "Open connections, in at most 3/4 of the descriptors; more are answered 503.")
    header_timeout_s: float = _setting(20.0, "Seconds within which the head of a request must be complete (408).")
    keepalive_timeout_s: float = _setting(75.0, "Seconds after which an idle connection is closed.")
    body_min_rate_bytes_per_s: int = _setting(1 * KIB, "Uploads slower than this over body_grace_s are ended with 408.")
    body_grace_s: float = _setting(20.0, "Seconds over which the minimum rate of an upload is measured.")
    read_stall_timeout_s: float = _setting(
        120.0, "Seconds without taking a byte of the answer after which a client is cut off."
    )
    transfer_threads: int = _setting(
        32, "Threads for bulk data in each direction, in targets per disk; waiting transfers hold none."
    )
    drain_timeout_s: float = _setting(30.0, "Seconds that running requests get to finish when the node stops.")
    peer_timeout_s: float = _setting(10.0, "Seconds for another node to accept a connection or to begin its answer.")

    hold_s: float = _setting(
        15.0, "Seconds for which a request, its body unread, waits for a target that restarts, or for a lease."
    )

    etcd_urls: tuple[str, ...] = _setting(
        (),
        "URLs of the members of an etcd with the registry, so that there may be several proxies; if empty, it is in dir.",
        ("proxy",),
    )
    etcd_prefix: str = _setting("/dfc/", "What the keys of this cluster in etcd begin with.", ("proxy",))
    etcd_user: str = _setting(
        "", "User of etcd, if it lets nobody in without; the user needs all rights to that prefix.", ("proxy",)
    )
    etcd_password: str = _setting("", "Password of that user.", ("proxy",))
    etcd_ca: str = _setting(
        "",
        "PEM file of the authority that signs etcd's certificates, for https://; if empty, those that the system trusts.",
        ("proxy",),
    )
    etcd_cert: str = _setting("", "PEM file with this proxy's certificate, if etcd wants to see one.", ("proxy",))
    etcd_key: str = _setting("", "PEM file with the key of that certificate.", ("proxy",))
    auto_create: bool = _setting(True, "Create a bucket on the first PUT into it.", ("proxy",))
    default_copies: int = _setting(1, "Copies of each object in buckets that are created without saying how many.", ("proxy",))
    expected_targets: int = _setting(
        1, "Number of targets that must have joined before the proxy is ready for the first time.", ("proxy",)
    )
    down_after_s: float = _setting(
        10.0, "Seconds without a heartbeat after which a target is marked down; it writes for 0.8 times as long.", ("proxy",)
    )
    rebalance: Literal["auto", "manual"] = _setting(
        "auto",
        "When targets and disks that join get objects: `auto`: by themselves; `manual`: when they are told to.",
        ("proxy",),
    )
    join_wait_s: float = _setting(
        10.0,
        "Seconds after a disk has joined until objects are moved to it, and to others that have joined by then.",
        ("proxy",),
    )
    out_after_s: float = _setting(
        600.0,
        "Seconds for which a disk may be away until objects with several copies get them on other disks; 0: never.",
        ("proxy",),
    )
    jobs_running_max: int = _setting(2, "Maximum number of jobs that run at the same time; more are queued.", ("proxy",))
    jobs_queued_max: int = _setting(100, "Maximum number of queued jobs; more are answered 503.", ("proxy",))
    jobs_tasks_max: int = _setting(
        1024, "Maximum number of tasks of one job handed to the engine at a time, and at most 4 per worker.", ("proxy",)
    )
    jobs_keep_s: float = _setting(604_800.0, "Seconds for which finished jobs are listed.", ("proxy",))
    jobs_keep_max: int = _setting(10_000, "Maximum number of finished jobs listed; the oldest are dropped first.", ("proxy",))
    jobs_user_functions: bool = _setting(False, "Allow jobs to run functions that are installed on the workers.", ("proxy",))
    jobs_user_commands: bool = _setting(False, "Allow jobs to run commands given in their specs.", ("proxy",))

    proxy_url: str = _setting(
        DEFAULT_URL, "The proxy that keeps the registry, or several addresses of it, separated by commas.", ("target",)
    )
    zone: str = _setting(
        "", "Name of what this target shares with others and what can fail at once: a rack, a row, a room.", ("target",)
    )
    host_label: str = _setting("", "Name of the machine, if several targets share one; used where zone is empty.", ("target",))
    disks: tuple[str, ...] = _setting((), "Directories of the target's disks, each on a file system of its own.", ("target",))
    heartbeat_s: float = _setting(1.0, "Seconds between heartbeats to the registry.", ("target",))
    reads_without_lease: Literal["serve", "refuse"] = _setting(
        "serve",
        "Reads while this target is cut off from the coordinator: serve them, marked as possibly stale, or answer 503.",
        ("target",),
    )
    object_size_max_bytes: int = _setting(
        5 * 1024 * GIB, "Maximum size of an object; larger ones are refused with 413.", ("target",)
    )
    disk_reserve_bytes: int = _setting(
        1 * GIB, "Free space on a disk that uploads leave unused (at most 5 % of the disk).", ("target",)
    )
    disk_ballast_bytes: int = _setting(
        16 * MIB, "Size of the file that is given up when a disk is full, so that deletes still work.", ("target",)
    )
    disk_error_budget: int = _setting(10, "Number of I/O errors after which a disk accepts no more writes.", ("target",))
    sync_relaxed_s: float = _setting(
        30.0, "Seconds within which objects in buckets with durability 'relaxed' are synced.", ("target",)
    )
    row_cache_rows: int = _setting(65_536, "Number of catalog rows kept in memory per disk.", ("target",))
    orphan_keep_s: float = _setting(86_400.0, "Seconds for which unreferenced files stay in orphans/.", ("target",))
    scrub_interval_s: float = _setting(
        604_800.0, "Seconds between two checks of each object, roughly; 0 for no checks.", ("target",)
    )
    scrub_rate_bytes_per_s: int = _setting(32 * MIB, "Speed limit of scrubbing, per disk.", ("target",))

    jobs_scheduler: str = _setting(
        "",
        "Dask scheduler for jobs, tls://HOST:PORT; `coordinator`: the coordinating proxy runs it; if empty, the proxy runs its"
        " own processes.",
    )
    jobs_scheduler_port: int = _setting(
        0, "Port of the scheduler that the coordinator runs; 0 for any that is free.", ("proxy",)
    )
    jobs_tls_ca: str = _setting("", "PEM file of the authority that signs all certificates for the jobs' scheduler.")
    jobs_tls_cert: str = _setting("", "PEM file with this node's certificate for the jobs' scheduler.")
    jobs_tls_key: str = _setting("", "PEM file with the key of that certificate.")
    jobs_workers: int = _setting(0, "Worker processes for jobs, here or beside this target; 0 for one per processor.")
    jobs_engine_idle_s: float = _setting(
        300.0, "Seconds without a task after which the processes of the local engine end.", ("proxy",)
    )
    jobs_memory_bytes: int = _setting(256 * MIB, "Memory that a task of a job may use for buffers.", ("proxy",))
    jobs_io_bytes_per_s: int = _setting(0, "Speed limit of a worker, for reads and for writes; 0 for none.", ("proxy",))
    jobs_priority: Literal["low", "normal"] = _setting(
        "low", "With 'low', jobs use only the processor and disk time that others leave.", ("proxy",)
    )

    def is_loopback(self) -> bool:
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table, for documentation, samples and flags."""

    name: str
    kind: Any
    default: Any
    about: str
    roles: tuple[Role, ...]

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


_KINDS: Final = get_type_hints(Settings)
SETTINGS: Final[Mapping[str, Setting]] = {
    each.name: Setting(each.name, _KINDS[each.name], each.default, each.metadata["about"], each.metadata["roles"])
    for each in fields(Settings)
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and the origin of each: `default`, `file PATH`, `variable NAME` or `flag --name`."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(
    role: Role, *, file: str | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Loaded:
    """Merge all origins and check the result; ConfigError says which key of which origin is wrong."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {name: "default" for name, setting in SETTINGS.items() if role in setting.roles}
    for name, value, origin in _given(file, environment or {}, flags or {}):
        setting = SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"{origin}: unknown setting {name!r}; `dfc config show` lists all settings")
        if role not in setting.roles:
            if origin.startswith("variable"):
                continue  # one environment may serve all nodes of a machine
            raise ConfigError(f"{origin}: {name!r} is a setting for a {setting.roles[0]}, but this is a {role}")
        values[name] = _convert(setting, value, origin)
        origins[name] = origin
    settings = Settings(**values)
    _check(settings, role)
    return Loaded(settings, origins)


def _given(file: str | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """All values given, lowest precedence first."""
    if file:
        try:
            content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not valid TOML: {error}") from None
        for name, value in content.items():
            yield name, value, f"file {file}"
    for variable, value in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in FOREIGN_VARIABLES:
            yield variable.removeprefix(ENVIRONMENT_PREFIX).lower(), value, f"variable {variable}"
    for name, value in flags.items():
        if value is not None:
            yield name, value, f"flag --{name.replace('_', '-')}"


def _convert(setting: Setting, value: Any, origin: str) -> Any:
    if isinstance(value, str):
        if setting.kind == tuple[str, ...]:
            value = [part.strip() for part in value.split(",") if part.strip()]
        elif "bytes" in setting.name and (match := _SIZE.fullmatch(value.strip())):
            value = int(float(match[1]) * KIB ** " KMGT".index(match[2].upper() or " "))
    try:
        return msgspec.convert(value, setting.kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {setting.name}: {error}") from None


def _check(settings: Settings, role: Role) -> None:
    if not 0 <= settings.port <= 65535:
        raise ConfigError(f"port must be between 0 and 65535, not {settings.port}")
    for name in ("url", "advertise_url"):
        value = getattr(settings, name)
        if value and not is_http_url(value):
            raise ConfigError(f"{name} must have the form http://HOST:PORT, not {value!r}")
    _check_proxy_url(settings.proxy_url)
    _check_etcd(settings)
    for host in settings.allowed_hosts:
        if host != ANY_HOST and host_name(host) is None:
            raise ConfigError(f"allowed_hosts must list ASCII host names without scheme or port, or '*', not {host!r}")
    for name in ("zone", "host_label"):
        if not _LABEL.fullmatch(getattr(settings, name)):
            raise ConfigError(f"{name} may have at most 64 letters, digits and the characters . _ -")
    for name in SETTINGS:
        value = getattr(settings, name)
        if isinstance(value, (int, float)) and value < 0:
            raise ConfigError(f"{name} must not be negative: {value}")
    if settings.transfer_threads < 1 or settings.connections_max < 1:
        raise ConfigError("transfer_threads and connections_max must be at least 1")
    if settings.jobs_running_max < 1 or settings.jobs_tasks_max < 1:
        raise ConfigError("jobs_running_max and jobs_tasks_max must be at least 1")
    if not 1 <= settings.default_copies <= COPIES_MAX:
        raise ConfigError(f"default_copies must be 1 to {COPIES_MAX}, not {settings.default_copies}")
    if role == "target" and not settings.disks:
        raise ConfigError("a target needs at least one directory in 'disks'")
    _check_scheduler(settings)
    if settings.token and not (settings.token.isascii() and settings.token.isprintable() and " " not in settings.token):
        raise ConfigError("the token must be printable ASCII without spaces")


def _check_proxy_url(text: str) -> None:
    try:
        wrong = [url for url in split_addresses(text) if not is_http_url(url)]
    except BadRequest as error:
        raise ConfigError(f"proxy_url: {error.message}") from None
    if wrong:
        raise ConfigError(f"proxy_url must be http://HOST:PORT, or several of these separated by commas, not {wrong[0]!r}")


def _check_etcd(settings: Settings) -> None:
    wrong = next((url for url in settings.etcd_urls if not is_http_url(url)), None)
    if wrong is not None:
        raise ConfigError(f"etcd_urls must list URLs like http://HOST:2379, not {wrong!r}")
    if any("@" in url for url in settings.etcd_urls):
        raise ConfigError("etcd_urls must not have a name and a password in them: set etcd_user and etcd_password")
    if not _PREFIX.fullmatch(settings.etcd_prefix):
        raise ConfigError(
            f"etcd_prefix must be '/' and then only letters, digits and . _ - / in it, not {settings.etcd_prefix[:80]!r}"
        )
    if settings.etcd_password and not settings.etcd_user:
        raise ConfigError("etcd_password is set, but etcd_user is not")
    if settings.etcd_cert and not settings.etcd_key:
        raise ConfigError("etcd_cert is set, but etcd_key is not")


def _check_scheduler(settings: Settings) -> None:
    """Check the scheduler's settings. Dask unpickles what its peers send, so peers on other machines need a certificate."""
    if not settings.jobs_scheduler:
        return
    if settings.jobs_scheduler == COORDINATOR:
        if settings.jobs_tls_ca or not settings.is_loopback():
            _check_certificates(settings, "jobs_scheduler = coordinator off loopback")
        return
    parts = urlsplit(settings.jobs_scheduler)
    try:
        complete = parts.scheme in ("tcp", "tls") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        complete = False
    if not complete:
        raise ConfigError(f"jobs_scheduler must have the form tls://HOST:PORT, not {settings.jobs_scheduler!r}")
    if parts.scheme == "tcp" and not is_loopback(parts.hostname or ""):
        raise ConfigError(f"jobs_scheduler is on another machine and must use tls://, not {settings.jobs_scheduler!r}")
    if parts.scheme == "tls":
        _check_certificates(settings, "a jobs_scheduler with tls://")


def _check_certificates(settings: Settings, what: str) -> None:
    for name in ("jobs_tls_ca", "jobs_tls_cert", "jobs_tls_key"):
        value = getattr(settings, name)
        if not value:
            raise ConfigError(f"{name} is missing: {what} needs it")
        if not os.access(value, os.R_OK):
            raise ConfigError(f"{name}: cannot read {value}")


def sample_toml() -> str:
    """Return the commented sample file with every setting, `deploy/dfc.toml`."""
    lines = ["# Every setting of DFC with its default. Remove the '#' of a line to change it.", ""]
    for setting in SETTINGS.values():
        only = "" if len(setting.roles) == 2 else f" ({setting.roles[0]} only)"
        lines += [f"# {setting.about}{only}", f"#{setting.name} = {msgspec.json.encode(setting.default).decode()}", ""]
    return "\n".join(lines)
