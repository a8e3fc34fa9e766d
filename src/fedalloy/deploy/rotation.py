"""`deploy revoke` and `deploy rotate`: end the validity of a site's key, replace it, renew the server's certificate.

The folder is changed first. From then on the door refuses the old key and a run ignores it; then the SuperLink is told,
or by the next `up` if it is not running.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from fedalloy.base.files import PRIVATE, locked, make_folder, remove_file, sync_folder, write_atomically
from fedalloy.deploy import control, link, processes
from fedalloy.deploy.folder import Deployment, Say
from fedalloy.deploy.site_keys import PUBLIC, REVOKED, STAMP, has_key, is_revoked, replace_key, revoke_key, settle
from fedalloy.errors import StorageError, UsageError


def revoke(deployment: Deployment, site: int, say: Say) -> None:
    """Revoke a site: its key is never valid again, and it takes part in nothing until it is given a new one."""
    link.need_flower()
    label, name = deployment.label(site), control.site_name(site)
    with locked(link.lock_file(deployment)):
        new = revoke_key(deployment, site)
        say(f"{label} is revoked" if new else f"{label} was revoked before")
        _tell_link(deployment, say)
    if name in processes.known(deployment.state):
        processes.stop(deployment.state, [name])
        say(f"its process on this machine was stopped; a run in progress goes on without {label}")


def rotate(
    deployment: Deployment, site: int, say: Say, public_key: Path | None = None, *, reinstate: bool = False
) -> None:
    """Give a site a new key, or register the public part of a key that the site has created itself."""
    link.need_flower()
    label, folder = deployment.label(site), deployment.site(site)
    with locked(link.lock_file(deployment)):
        completed = site in settle(deployment, [site])
        if completed and public_key is None:
            say(f"{label}: a rotation that was interrupted is complete")
        else:
            _replace(deployment, site, public_key, reinstate, say)
        _tell_link(deployment, say)
    if control.site_name(site) in processes.known(deployment.state):
        _restart(deployment, site, say)
    elif public_key is not None:
        say(f"at {label}: put the private key in node.key (mode 0600), then restart start.sh")
    else:
        say(f"at {label}: replace node.key by the one in '{folder}', over a channel that you trust; restart start.sh")


def _replace(deployment: Deployment, site: int, public_key: Path | None, reinstate: bool, say: Say) -> None:
    from fedalloy.deploy import keys

    label, name = deployment.label(site), deployment.folder.name
    if is_revoked(deployment, site) and not reinstate:
        raise UsageError(
            f"{label} is revoked; to let it take part again with a new key, add --reinstate: `fedalloy deploy rotate "
            f"{name} site-{site} --reinstate`"
        )
    if public_key is None:
        if not (deployment.site(site) / "node.key").is_file():
            raise UsageError(
                f"the folder of {label} is not here; let the site create a key with `ssh-keygen -t ecdsa -b 384 -N '' "
                "-f node.key`, and pass its public part with --public-key node.key.pub"
            )
        pair = keys.node_key()
        replace_key(deployment, site, pair.public, pair.private)
    else:
        try:
            public = public_key.read_bytes()
        except OSError as error:
            raise UsageError(f"--public-key '{public_key}' cannot be read: {error.strerror}") from error
        if has_key(deployment, site, public):
            say(f"{label} has this key already")
            return
        replace_key(deployment, site, public, None)
    say(f"{label} has a new key; the old one is in '{deployment.server.name}/{REVOKED}' and is never valid again")


def _tell_link(deployment: Deployment, say: Say) -> None:
    try:
        link.reconcile(deployment)
    except link.LinkError as error:
        say(f"the SuperLink has not been told yet: {error}; `fedalloy deploy up {deployment.folder.name}` does it")
    else:
        say("the SuperLink accepts valid keys only")


def _restart(deployment: Deployment, site: int, say: Say) -> None:
    """Restart a rehearsal's site with its new key; the SuperLink sees a new node, so it need not wait for the old."""
    name, started = control.site_name(site), time.time()
    processes.stop(deployment.state, [name])
    control.start_site(deployment, site, started)
    say(f"{deployment.label(site):<12} restarted, online")


def renew_server(deployment: Deployment, say: Say) -> None:
    """Renew the server's certificate and key; the authority, which the sites know, stays the same."""
    link.need_flower()
    from fedalloy.deploy import keys

    server = deployment.server
    with locked(link.lock_file(deployment)):
        if not _install_certificate(server):
            try:
                authority = keys.read_authority((server / "ca.key").read_bytes(), (server / "ca.crt").read_bytes())
            except OSError as error:
                raise UsageError(
                    f"'{error.filename}' is not here; put the authority's key back for this command, and move it away "
                    "again afterwards"
                ) from error
            except (ValueError, TypeError) as error:
                raise StorageError(f"'{server / 'ca.key'}' and ca.crt cannot be used: {error}") from error
            made = keys.server_certificate(authority, deployment.host)
            write_atomically(server / "server.crt.next", made.public, PUBLIC)
            write_atomically(server / "server.key.next", made.private, PRIVATE)  # from here on it will be completed
            _install_certificate(server)
    say(f"the server has a new certificate, for {keys.LASTS.days} days; the sites need nothing")
    say(
        f"restart the SuperLink to use it: `fedalloy deploy down {deployment.folder.name}`, then `up`, and `resume` if "
        "a run was in progress"
    )
    say("the old certificate stays valid until it expires: if its key was stolen, create a new deployment")


def _install_certificate(server: Path) -> bool:
    """Put a new certificate and its key in place, the key first; return whether there was one.

    Without a next key, a next certificate either belongs to the key in place, or a command was killed before it began.
    """
    from fedalloy.deploy import keys

    certificate, key = server / "server.crt.next", server / "server.key.next"
    if not certificate.exists():
        return False
    if key.exists():
        make_folder(server / REVOKED)
        stamp = datetime.now(UTC).strftime(STAMP)
        write_atomically(server / REVOKED / f"server-{stamp}.crt", (server / "server.crt").read_bytes(), PUBLIC)
        key.replace(server / "server.key")
    if not keys.certified((server / "server.key").read_bytes(), certificate.read_bytes()):
        remove_file(certificate)
        return False
    certificate.replace(server / "server.crt")
    sync_folder(server)
    return True
