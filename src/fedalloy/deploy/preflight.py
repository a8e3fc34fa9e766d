"""The checks of a site's start script: is this the right server, and can the site's data be read?

A SuperNode that meets a wrong certificate only reports that it tries again, forever. And a problem with a site's data
is better reported at the site than at the server when the run begins.
"""

from __future__ import annotations

import socket
import ssl
import sys
import tomllib
from pathlib import Path

PATIENCE = 10.0  # seconds


def refusal(host: str, port: int, authority: str) -> tuple[int, str]:
    """Return an exit code and a message: 0 if the server is right or not reachable yet, 2 if it is another server."""
    server = f"the server at {host}:{port}"
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        return 2, f"'{authority}' is not a valid certificate: {error}; ask for a new copy of this site's folder"
    try:
        with (
            socket.create_connection((host, port), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return 0, f"{server} is the one that this site was created for"
    except ssl.SSLCertVerificationError as error:
        return (
            2,
            f"{server} is not the one that this site was created for: {error.verify_message}; nothing was sent to it",
        )
    except ssl.SSLError as error:
        return 2, f"{server} does not speak TLS: {error.reason}; nothing was sent to it"
    except OSError as error:
        return 0, f"{server} cannot be reached yet: {error.strerror or error}; will keep trying"


def found_data(folder: Path, sites: int) -> tuple[int, str]:
    """Return an exit code and a message: how many samples this site has, or why they cannot be read."""
    from fedalloy.deploy.site import site_sizes  # takes seconds, because of torch
    from fedalloy.errors import FedalloyError

    try:
        client, train, test = site_sizes(folder, sites)
    except FedalloyError as error:
        return error.code, str(error)
    return 0, f"site {client} has {train} training samples and {test} test samples"


def main(host: str, port: str, folder: str, sites: str) -> int:
    """Print what was found; a site that takes a share of the experiment's own data has no data to check."""
    site = Path(folder)
    code, sentence = refusal(host, int(port), str(site / "ca.crt"))
    sys.stderr.write(f"fedalloy: {sentence}\n")
    if code == 0 and not _is_share(site / "site.toml"):
        code, sentence = found_data(site, int(sites))
        sys.stderr.write(f"fedalloy: {sentence}\n")
    return code


def _is_share(file: Path) -> bool:
    try:
        return "share" in tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # reported when the whole file is read
        return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
