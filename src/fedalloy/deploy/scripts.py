"""The scripts that start a deployment's processes, and the systemd units that keep them running."""

from __future__ import annotations

from fedalloy.deploy.folder import Deployment

_HEAD = """#!/bin/sh
# {about}
set -eu
cd "$(dirname "$0")"
HERE=$(pwd -P)
command -v {program} >/dev/null || {{
    echo "{program} is not on PATH; install fedalloy[flower] and put its bin folder first on PATH" >&2
    exit 2
}}
umask 077
export FLWR_HOME="{home}"
export FLWR_TELEMETRY_ENABLED=0
export FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.5
export NO_PROXY="127.0.0.1,localhost${{NO_PROXY:+,$NO_PROXY}}"
mkdir -p "$FLWR_HOME"
"""

_SUPERLINK = """exec python -m fedalloy.deploy.door \\
    --host {bind} --port {port} \\
    --ssl-ca-certfile "$HERE/ca.crt" --ssl-certfile "$HERE/server.crt" --ssl-keyfile "$HERE/server.key" \\
    --enable-supernode-auth \\
    --database "$HERE/../state/superlink.db" \\
    --isolation process --superexec-auth-secret-file "$HERE/superexec.secret" \\
    --disable-runtime-dependency-installation
"""

_SUPEREXEC = """export FEDALLOY_DEPLOYMENT="$HERE/.."
exec flower-superexec \\
    --runtime-api-address 127.0.0.1:{port} --root-certificates "$HERE/ca.crt" \\
    --superexec-auth-secret-file "$HERE/superexec.secret"
"""

# The shell is replaced by the SuperNode, so that the process that answers messages, which is its child, ends with it.
_SITE = """python -m fedalloy.deploy.preflight {host} {port} "$HERE" {sites}
exec python -m fedalloy.deploy.node \\
    --superlink {address} --root-certificates "$HERE/ca.crt" \\
    --auth-supernode-private-key "$HERE/node.key" \\
    --node-config "partition-id={number} num-partitions={sites} site='$HERE'" \\
    --host 127.0.0.1 --port {runtime} \\
    --isolation process --superexec-auth-secret-file "$HERE/superexec.secret"
"""

_UNIT = """[Unit]
Description={about}
After=network-online.target
Wants=network-online.target

[Service]
User=fedalloy
Environment=PATH=/opt/fedalloy/venv/bin:/usr/bin:/bin
ExecStart=/opt/fedalloy/{place}
Restart=always
RestartSec=5
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true
ReadWritePaths=/opt/fedalloy/{writes}

[Install]
WantedBy=multi-user.target
"""


def superlink_script(deployment: Deployment) -> str:
    """Return the script that starts the SuperLink: TLS, registered sites only, a database on disk."""
    about = "The SuperLink, which sites connect to."
    bind = "127.0.0.1" if deployment.is_local else "0.0.0.0"
    head = _HEAD.format(about=about, program="flower-superlink", home="$HERE/../state/superlink")
    return head + _SUPERLINK.format(bind=bind, port=deployment.port)


def superexec_script(deployment: Deployment) -> str:
    """Return the script that starts the server's SuperExec separately, so that a run survives the SuperLink's death."""
    about = "The SuperExec, which runs the server's part of an experiment."
    head = _HEAD.format(about=about, program="flower-superexec", home="$HERE/../state/superexec")
    return head + _SUPEREXEC.format(port=deployment.port)


def site_script(deployment: Deployment, number: int) -> str:
    """Return the script that starts a site's SuperNode and the process that answers its messages."""
    head = _HEAD.format(about=f"Site {number} of {deployment.sites}.", program="flower-supernode", home="$HERE/flwr")
    return head + _SITE.format(
        address=deployment.address,
        host=deployment.host,
        port=deployment.port,
        number=number,
        sites=deployment.sites,
        runtime=deployment.runtime_port(number),
    )


def server_unit(part: str) -> str:
    """Return the systemd unit of the SuperLink or the SuperExec."""
    return _UNIT.format(about=f"fedalloy: {part}", place=f"deployment/server/{part}.sh", writes="deployment")


def site_unit(number: int) -> str:
    """Return the systemd unit of a site."""
    return _UNIT.format(about=f"fedalloy: site {number}", place=f"site-{number}/start.sh", writes=f"site-{number}")


APP = """# What Flower ships to the sites: two names and the experiment. The code is each site's own fedalloy.
[project]
name = "fedalloy-deployment"
version = "1.0.0"
description = "A fedalloy experiment"
license = "Apache-2.0"
dependencies = ["fedalloy[flower]"]

[tool.flwr.app]
publisher = "fedalloy"
fab-include = ["experiment.toml"]

[tool.flwr.app.components]
serverapp = "fedalloy.deploy.app:server"
clientapp = "fedalloy.deploy.app:client"

[tool.flwr.app.config]
"""
