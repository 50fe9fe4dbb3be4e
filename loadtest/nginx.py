"""nginx as the reference for benchmarks: the Debian package, with sendfile for GET and the DAV module for PUT."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtest.processes import accepts, find_program, free_port, running

# Access log and metrics are off in nginx and on in DFC. The body buffer has the size at which PUT was fastest here.
CONFIG = """
{user}worker_processes {workers};
pid {state}/nginx.pid;
error_log {state}/error.log warn;
daemon off;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_timeout 300;
    keepalive_requests 100000000;
    default_type application/octet-stream;
    client_max_body_size 0;
    client_body_buffer_size {body_buffer};
    client_body_temp_path {state}/body;
    proxy_temp_path {state}/unused;
    fastcgi_temp_path {state}/unused;
    scgi_temp_path {state}/unused;
    uwsgi_temp_path {state}/unused;
    server {{
        listen 127.0.0.1:{port};
        root {root};
        location / {{
            dav_methods PUT DELETE;
            create_full_put_path on;
        }}
    }}
}}
"""
BODY_BUFFER = "256k"


@dataclass(frozen=True, slots=True)
class Nginx:
    """A running nginx. It serves `root` at `url`, and stores PUTs there."""

    url: str
    port: int
    root: Path
    pid: int


@contextlib.contextmanager
def nginx(directory: Path, *, workers: int, body_buffer: str = BODY_BUFFER) -> Iterator[Nginx]:
    """Run nginx for a `with` block. It receives and stores bodies on the file system of `directory`."""
    program = find_program("nginx")
    if program is None:
        raise FileNotFoundError("nginx is not installed")
    state, root = directory / "nginx-state", directory / "nginx-root"
    state.mkdir(parents=True, exist_ok=True)
    root.mkdir(exist_ok=True)
    port = free_port()
    # If root runs the master, workers would run as another user, who cannot read DFC's files.
    user = "user root;\n" if os.geteuid() == 0 else ""
    config = state / "nginx.conf"
    config.write_text(CONFIG.format(user=user, workers=workers, state=state, root=root, port=port, body_buffer=body_buffer))
    argv = [program, "-e", str(state / "error.log"), "-c", str(config), "-p", str(state)]
    with running(argv, state / "output.log") as child:
        child.wait_until(lambda: accepts(port), 10, "a listening nginx")
        yield Nginx(f"http://127.0.0.1:{port}", port, root, child.pid)
