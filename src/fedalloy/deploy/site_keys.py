"""The keys of a deployment's sites as files: which are valid, which were revoked, and how one replaces another.

server/sites/site-1.pub         the public key of site 1
server/sites/site-1.next        the key that is about to replace it
server/revoked/site-1.json      site 1 is revoked: since when, and which key it had
server/revoked/site-1-TIME.pub  a public key that site 1 had until that time; it is never valid again
sites/site-1/node.key.next      the private part of the next key, if the site's folder is here

Each step is one durable file operation, and `settle` completes what a killed command has begun.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from fedalloy.base.files import PRIVATE, as_json, make_folder, remove_file, sync_folder, write_atomically
from fedalloy.deploy.audit import site_log
from fedalloy.deploy.folder import Deployment
from fedalloy.errors import DataError, StorageError, UsageError
from fedalloy.storage.audit import LOG

REVOKED = "revoked"  # the folder, and the state of a site
PUBLIC = 0o644
STAMP = "%Y%m%dT%H%M%S.%fZ"


def current_file(deployment: Deployment, site: int) -> Path:
    """Return the file with a site's public key."""
    return deployment.server / "sites" / f"site-{site}.pub"


def is_revoked(deployment: Deployment, site: int) -> bool:
    """Return whether a site is revoked."""
    return _marker(deployment, site).exists()


def revoked_sites(deployment: Deployment) -> list[int]:
    """Return the sites that are revoked."""
    return [site for site in range(deployment.sites) if is_revoked(deployment, site)]


def valid_keys(deployment: Deployment) -> dict[bytes, int]:
    """Return the site of each valid key, in the format in which Flower compares keys."""
    found: dict[bytes, int] = {}
    never = revoked_keys(deployment.server / REVOKED)
    for site in range(deployment.sites):
        if is_revoked(deployment, site):
            continue
        file = current_file(deployment, site)
        key = _read(file, f"put the public key of site {site} there")
        if key in found:
            raise StorageError(f"sites {found[key]} and {site} have the same key in '{file.parent}'")
        if key in never:
            raise StorageError(
                f"'{file}' is a key that was revoked; create another with `fedalloy deploy rotate "
                f"{deployment.folder.name} site-{site}`, after you have removed this file"
            )
        found[key] = site
    return found


def revoked_keys(folder: Path) -> frozenset[bytes]:
    """Return all keys in a folder of revoked keys; a file that is not a key is skipped."""
    return frozenset(filter(None, (_pem(file.read_bytes()) for file in folder.glob("*.pub"))))


def revoke_key(deployment: Deployment, site: int) -> bool:
    """Revoke a site and its key; return False if it was revoked before."""
    settle(deployment, [site])
    if is_revoked(deployment, site):
        return False
    file = current_file(deployment, site)
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    make_folder(deployment.server / REVOKED)
    write_atomically(_marker(deployment, site), as_json({"since": _now(), "key": text}), PUBLIC)
    settle(deployment, [site])
    return True


def replace_key(deployment: Deployment, site: int, public: bytes, private: bytes | None) -> None:
    """Replace a site's key, or give a revoked site a new one; the private part goes to the site's folder."""
    settle(deployment, [site])
    key = _checked(public)
    others = {k: v for k, v in _current_keys(deployment).items() if v != site}
    if key in others:
        raise UsageError(f"site {others[key]} has this key; each site needs a key of its own")
    if key in revoked_keys(deployment.server / REVOKED):
        raise UsageError("this key was revoked and is never valid again; create a new one")
    if private is not None:
        write_atomically(_staged(deployment, site), private, PRIVATE)
    write_atomically(_next(deployment, site), public, PUBLIC)  # from here on, `settle` completes it
    settle(deployment, [site])


def has_key(deployment: Deployment, site: int, public: bytes) -> bool:
    """Return whether a public key is the valid key of a site."""
    return not is_revoked(deployment, site) and _current_keys(deployment).get(_checked(public)) == site


def settle(deployment: Deployment, sites: Iterable[int]) -> list[int]:
    """Complete what a killed command has begun; return the sites whose key was replaced."""
    replaced = []
    for site in sites:
        current, following, marker = current_file(deployment, site), _next(deployment, site), _marker(deployment, site)
        if following.exists():
            _unbind(deployment, site)
            if current.exists():
                _retire(deployment, site)
            remove_file(marker)
            sync_folder(deployment.server)
            _rename(following, current)
            replaced.append(site)
        elif marker.exists() and current.exists() and _text(current) == _key_of(marker):
            _retire(deployment, site)
        if _install(deployment, site) and site not in replaced:
            replaced.append(site)
    return replaced


def nodes_file(deployment: Deployment) -> Path:
    """Return the file with Flower's node id of each site, as assigned at registration."""
    return deployment.state / "nodes.json"


def _unbind(deployment: Deployment, site: int) -> None:
    """Forget which node a site is: an answer from its old key may still be waiting at a SuperLink that is not told."""
    file = nodes_file(deployment)
    found = json.loads(_text(file)) if file.exists() else {}
    if found.pop(str(site), None) is not None:
        write_atomically(file, as_json(found), PRIVATE)


def _install(deployment: Deployment, site: int) -> bool:
    """Put the private part of a new key into the site's folder, if it is here; return whether there was one."""
    from fedalloy.deploy import keys

    staged, folder, current = _staged(deployment, site), deployment.site(site), current_file(deployment, site)
    key = _pem(_text(current).encode()) if current.exists() else b""
    done = staged.exists() and keys.public_of(staged.read_bytes()) == key
    if done:
        _note(folder, site, key)
        _rename(staged, folder / "node.key")
    elif staged.exists():
        remove_file(staged)  # the command was killed before the server knew of this key
    private, public = folder / "node.key", folder / "node.pub"
    ours = bool(key) and private.exists() and keys.public_of(private.read_bytes()) == key
    if ours and (not public.exists() or _pem(public.read_bytes()) != key):
        write_atomically(public, current.read_bytes(), PUBLIC)
    return done


def _note(folder: Path, site: int, key: bytes) -> None:
    """Add a line to the site's audit log, if there is one: its lines do not depend on the key."""
    from fedalloy.deploy import keys

    if (folder / "memory" / str(site) / LOG).exists():
        try:
            site_log(folder, site).append("rotated", {"key": keys.fingerprint(key)})
        except DataError:  # a log that was changed is reported by `deploy audit` and must not keep a leaked key valid
            return


def _retire(deployment: Deployment, site: int) -> None:
    """Move a site's key to the revoked ones; no file there is ever overwritten."""
    folder = deployment.server / REVOKED
    make_folder(folder)
    target = folder / f"site-{site}-{_now()}.pub"
    while target.exists():
        target = folder / f"site-{site}-{_now()}.pub"
    _rename(current_file(deployment, site), target)


def _rename(source: Path, target: Path) -> None:
    try:
        os.replace(source, target)
    except OSError as error:
        raise StorageError(f"'{source}' cannot be moved to '{target}': {error.strerror}") from error
    for folder in {target.parent, source.parent}:
        sync_folder(folder)


def _current_keys(deployment: Deployment) -> dict[bytes, int]:
    files = {site: current_file(deployment, site) for site in range(deployment.sites)}
    found = {_pem(file.read_bytes()): site for site, file in files.items() if file.exists()}
    return {key: site for key, site in found.items() if key}


def _read(file: Path, hint: str) -> bytes:
    try:
        return _checked(file.read_bytes(), f"'{file}'")
    except OSError as error:
        raise StorageError(f"'{file}' does not exist; {hint}") from error
    except UsageError as error:
        raise StorageError(str(error)) from error


def _checked(public: bytes, what: str = "this") -> bytes:
    from fedalloy.deploy import keys  # cryptography comes with Flower, whose absence is reported elsewhere

    try:
        return keys.public_pem(public)
    except ValueError as error:
        raise UsageError(f"{what} is not a public key that sites can have: {error}") from error


def _pem(public: bytes) -> bytes:
    from fedalloy.deploy import keys

    try:
        return keys.public_pem(public)
    except ValueError:
        return b""


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _key_of(marker: Path) -> str:
    try:
        return str(json.loads(_text(marker))["key"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"'{marker}' cannot be read: {error}; restore it") from error


def _now() -> str:
    return datetime.now(UTC).strftime(STAMP)


def _next(deployment: Deployment, site: int) -> Path:
    return deployment.server / "sites" / f"site-{site}.next"


def _marker(deployment: Deployment, site: int) -> Path:
    return deployment.server / REVOKED / f"site-{site}.json"


def _staged(deployment: Deployment, site: int) -> Path:
    return deployment.site(site) / "node.key.next"
