"""A deployment's folder: its layout and its settings.

deployment.toml      the address, the number of sites, and how many samples each may claim
app/                 what Flower ships: the names of two functions in fedalloy, and the experiment
server/              certificates, secrets, the sites' public keys and start scripts for the SuperLink's machine
sites/site-0/        everything for the first site, and no secrets of other sites
state/               databases, logs, process ids
run/                 the run, in the same format as every fedalloy run
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalloy.base.text import name_fault
from fedalloy.errors import UsageError

Say = Callable[[str], None]

MOST_SAMPLES = 1_000_000  # that a site may claim, unless deployment.toml sets another limit
LARGEST = 1 << 40  # the largest limit that can be set
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Deployment:
    """A deployment and its paths.

    >>> Deployment(Path("lab"), "127.0.0.1", 8443, 3).site(2).as_posix()
    'lab/sites/site-2'
    """

    folder: Path
    host: str
    port: int
    sites: int
    most_samples: int | tuple[int, ...] = MOST_SAMPLES
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        each = self.most_samples if isinstance(self.most_samples, tuple) else (self.most_samples,) * self.sites
        if len(each) != self.sites or not all(type(n) is int and 0 < n <= LARGEST for n in each):
            raise UsageError(
                f"most_samples = {self.most_samples!s:.80} in deployment.toml must be an integer from 1 to "
                f"{LARGEST}, or a list with one for each of the {self.sites} sites"
            )

        if self.names and len(self.names) != self.sites:
            raise UsageError(f"names in deployment.toml has {len(self.names)} names for {self.sites} sites")
        if fault := name_fault(self.names):
            raise UsageError(f"names in deployment.toml: {fault}; rename it")

    def label(self, site: int) -> str:
        """Return a site's name, or its number if it has none.

        >>> Deployment(Path("lab"), "127.0.0.1", 8443, 2, names=("North clinic", "Lakeside")).label(1)
        'Lakeside'
        >>> Deployment(Path("lab"), "127.0.0.1", 8443, 2).label(1)
        'site-1'
        """
        return self.names[site] if self.names else f"site-{site}"

    def number(self, text: str) -> int:
        """Return the number of the site that a user means by its number, `site-NUMBER` or its name.

        >>> lab = Deployment(Path("lab"), "127.0.0.1", 8443, 2, names=("North clinic", "Lakeside"))
        >>> lab.number("1"), lab.number("site-1"), lab.number("Lakeside")
        (1, 1, 1)
        """
        sites = range(self.sites)
        found = {k for k in sites if text == f"site-{k}"} or {k for k in sites if text in (self.label(k), str(k))}
        if len(found) > 1:
            raise UsageError(f"'{text}' is the name of one site and the number of another; write site-NUMBER")
        if not found:
            each = ", ".join(self.label(k) for k in range(self.sites))
            raise UsageError(f"there is no site '{text}' in this deployment; its sites are {each}")
        return found.pop()

    def limit(self, site: int) -> int:
        """Return how many samples a site may claim, separately for training, testing and validation.

        >>> Deployment(Path("lab"), "127.0.0.1", 8443, 2, (500, 20)).limit(1)
        20
        """
        return self.most_samples[site] if isinstance(self.most_samples, tuple) else self.most_samples

    @property
    def address(self) -> str:
        """The address at which sites reach the SuperLink."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK

    @property
    def app(self) -> Path:
        """The folder that Flower ships."""
        return self.folder / "app"

    @property
    def experiment(self) -> Path:
        """The experiment's file."""
        return self.app / "experiment.toml"

    @property
    def server(self) -> Path:
        """The folder for the SuperLink's machine."""
        return self.folder / "server"

    @property
    def plugins(self) -> list[Path]:
        """The server's copies of plug-ins."""
        return sorted((self.server / "plugins").glob("*.py"))

    @property
    def state(self) -> Path:
        """The folder that running processes write to."""
        return self.folder / "state"

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "run"

    def site(self, number: int) -> Path:
        """Return the folder for a site."""
        return self.folder / "sites" / f"site-{number}"

    def runtime_port(self, number: int) -> int:
        """The port on a site's own loopback through which its SuperNode and SuperExec communicate."""
        return self.port + 1 + number

    def to_toml(self) -> str:
        """Return the contents of `deployment.toml`."""
        most = list(self.most_samples) if isinstance(self.most_samples, tuple) else self.most_samples
        return (
            f'host = "{self.host}"\nport = {self.port}\nsites = {self.sites}\n'
            f"most_samples = {most}  # that a site may claim; or a list with one number per site\n"
            + (f"names = {json.dumps(list(self.names), ensure_ascii=False)}\n" if self.names else "")
        )


def parse_address(text: str) -> tuple[str, int]:
    """Split an address into host and port.

    >>> parse_address("fl.example.org:8443")
    ('fl.example.org', 8443)
    >>> parse_address("fl.example.org")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: the address 'fl.example.org' must be host:port, for example 127.0.0.1:8443
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    allowed = all(c.isascii() and (c.isalnum() or c in ".-:") for c in host)
    if not host or not allowed or not port.isdecimal() or not 1024 <= int(port) < 65536:
        hint = "" if not port.isdecimal() else "; the port must be between 1024 and 65535" if host else ""
        raise UsageError(f"the address '{text}' must be host:port, for example 127.0.0.1:8443{hint}")
    return host, int(port)


def read_deployment(folder: str | Path) -> Deployment:
    """Read the deployment in a folder; other folders are refused."""
    folder = Path(os.path.abspath(folder))
    file = folder / "deployment.toml"
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        host, port, sites = str(values["host"]), int(values["port"]), int(values["sites"])
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"'{folder}' is not a deployment; create one with `fedalloy deploy init EXPERIMENT.toml --out "
            f"{folder.name} "
            "--sites 3`"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"'{file}' cannot be read: {error}; create the deployment again") from error
    most = values.get("most_samples", MOST_SAMPLES)
    return Deployment(folder, host, port, sites, tuple(most) if isinstance(most, list) else most, _names(values))


def _names(values: Mapping[str, Any]) -> tuple[str, ...]:
    names = values.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError('names in deployment.toml must be a list of texts, such as ["North clinic", "Lakeside"]')
    return tuple(names)
