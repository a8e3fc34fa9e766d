"""What a site's start script asks first: is this the server that the site's folder was made for?

A SuperNode that meets a wrong certificate only says that it tries again, for ever.
"""

from __future__ import annotations

import socket
import ssl
import sys

PATIENCE = 10.0  # seconds


def refusal(host: str, port: int, authority: str) -> tuple[int, str]:
    """An exit code and a sentence: 0 where the server is right or cannot be asked yet, 2 where it is another."""
    server = f"the server at {host}:{port}"
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        return 2, f"'{authority}' is no certificate: {error}; ask for this site's folder again"
    try:
        with (
            socket.create_connection((host, port), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return 0, f"{server} is the one this site was made for"
    except ssl.SSLCertVerificationError as error:
        return 2, f"{server} is not the one this site was made for: {error.verify_message}; nothing was sent to it"
    except ssl.SSLError as error:
        return 2, f"{server} does not speak TLS: {error.reason}; nothing was sent to it"
    except OSError as error:
        return 0, f"{server} cannot be reached yet: {error.strerror or error}; trying on"


def main(host: str, port: str, authority: str) -> int:
    """Say what was found."""
    code, sentence = refusal(host, int(port), authority)
    sys.stderr.write(f"fedalloy: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
