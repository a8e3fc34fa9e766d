"""Hosts of their own on one machine: network namespaces with an address each, joined by veth pairs and one bridge.

Nothing in them reaches the real network: the bridge lies in a namespace of its own, without a route to anywhere. Links
can be cut, restored and made slow. Needs root and `ip` (iproute2).

`slow_link` needs the kernel's netem. Where the kernel has none, frames pass through `python chaos/network.py`, which
delays, limits and drops them between two TAP devices: the TCP of both hosts is still the kernel's.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME = 2048  # bytes that a frame may have
QUEUE = 1000  # frames that wait in one direction; further ones are dropped, as by netem
T = TypeVar("T")

PATIENCE = 10.0  # seconds until the emulated link is there


class NoNamespacesError(Exception):
    """This machine does not let us create network namespaces."""


@dataclass(frozen=True)
class Slow:
    """What a slow link does to every frame, in each direction."""

    delay: float = 0.2  # seconds
    rate: float = 1e6  # bits per second
    loss: float = 0.01  # share of the frames


@dataclass
class Network:
    """Hosts on one bridge; `hosts` has the address of each by its name."""

    prefix: str
    hosts: Mapping[str, str]
    emulators: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def middle(self) -> str:
        """The namespace of the bridge."""
        return f"{self.prefix}-net"

    def namespace(self, host: str) -> str:
        """Return the namespace of a host."""
        return f"{self.prefix}-{host}"

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command that runs `words` on a host."""
        return ["ip", "netns", "exec", self.namespace(host), *words]

    def cut(self, host: str) -> None:
        """Cut a host's link behind the first switch: connections are not closed, their frames just disappear."""
        ip("-n", self.middle, "link", "set", f"to-{host}", "down")

    def restore(self, host: str) -> None:
        """Restore a host's link."""
        ip("-n", self.middle, "link", "set", f"to-{host}", "up")

    def on(self, host: str, function: Callable[[], T]) -> T:
        """Call a function in a thread that is on a host: its sockets have the host's addresses."""

        def there() -> T:
            with open(f"/run/netns/{self.namespace(host)}") as space:
                if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0):  # os.setns comes with Python 3.12
                    raise OSError(ctypes.get_errno(), "setns")
            return function()

        with ThreadPoolExecutor(1) as thread:  # it ends with the call, and never returns to this host
            return thread.submit(there).result()

    def slow_link(self, host: str, slow: Slow) -> str:
        """Make a host's link slow in both directions; return what does it: `netem` or `emulated`."""
        if self._netem(host, slow):
            return "netem"
        ip("-n", self.middle, "link", "del", f"to-{host}")
        program = [sys.executable, __file__, f"to-{host}", "far", *map(str, (slow.delay, slow.rate, slow.loss))]
        words = ["ip", "netns", "exec", self.middle, *program]
        self.emulators.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True))
        end = time.monotonic() + PATIENCE
        while not has_device(self.middle, "far"):
            if time.monotonic() > end:
                raise NoNamespacesError("a slow link cannot be emulated: no TAP devices")
            time.sleep(0.05)
        ip("-n", self.middle, "link", "set", "far", "netns", self.namespace(host), "name", "eth0")
        self._address(host)
        ip("-n", self.middle, "link", "set", f"to-{host}", "master", "bridge", "up")
        return "emulated"

    def processes(self, host: str) -> list[int]:
        """Return the processes on a host."""
        return [int(pid) for pid in ip("netns", "pids", self.namespace(host)).split()]

    def end(self) -> None:
        """Kill every process on every host."""
        for host in self.hosts:
            with suppress(NoNamespacesError):
                for pid in set(self.processes(host)) - {os.getpid()}:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def _netem(self, host: str, slow: Slow) -> bool:
        options = ["delay", f"{1000 * slow.delay:g}ms", "rate", f"{slow.rate:.0f}bit", "loss", f"{100 * slow.loss:g}%"]
        for space, device in ((self.middle, f"to-{host}"), (self.namespace(host), "eth0")):
            words = ["tc", "-n", space, "qdisc", "add", "dev", device, "root", "netem", *options]
            if subprocess.run(words, capture_output=True, check=False).returncode:
                return False
        return True

    def _join(self, host: str) -> None:
        ip("netns", "add", self.namespace(host))
        ip("-n", self.namespace(host), "link", "set", "lo", "up")
        peer = ("peer", "name", "eth0", "netns", self.namespace(host))
        ip("-n", self.middle, "link", "add", f"to-{host}", "type", "veth", *peer)
        self._address(host)
        ip("-n", self.middle, "link", "set", f"to-{host}", "master", "bridge", "up")

    def _address(self, host: str) -> None:
        ip("-n", self.namespace(host), "addr", "add", f"{self.hosts[host]}/24", "dev", "eth0")
        ip("-n", self.namespace(host), "link", "set", "eth0", "up")


def ip(*words: str) -> str:
    """Call `ip`, or raise an error with what it says."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoNamespacesError(f"`ip` cannot be called ({error.strerror}); install iproute2") from error
    if done.returncode:
        raise NoNamespacesError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def has_device(space: str, device: str) -> bool:
    """Return whether a namespace has a network device."""
    return subprocess.run(["ip", "-n", space, "link", "show", device], capture_output=True, check=False).returncode == 0


def why_not() -> str | None:
    """Return why this machine cannot have namespaces, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need `ip`; install iproute2"
    name = f"fedalloy-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "bridge", "type", "bridge")
    except NoNamespacesError as error:
        return str(error)
    finally:
        with suppress(NoNamespacesError):
            ip("netns", "del", name)
    return None


@contextmanager
def network(hosts: Mapping[str, str]) -> Iterator[Network]:
    """Create hosts with these addresses, and remove them at the end, whatever happens."""
    net = Network(f"fedalloy-{os.getpid()}", hosts)
    try:
        ip("netns", "add", net.middle)
        ip("-n", net.middle, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        ip("-n", net.middle, "link", "set", "bridge", "up")
        for host in hosts:
            net._join(host)
        yield net
    finally:
        for emulator in net.emulators:
            emulator.kill()
            emulator.wait()
        for space in (*map(net.namespace, hosts), net.middle):
            with suppress(NoNamespacesError):  # not made yet
                ip("netns", "del", space)


def emulate(near: str, far: str, slow: Slow) -> None:
    """Pass frames between two new TAP devices, late, slowly and with losses."""
    ends = [tap(near), tap(far)]
    dice, order, free = random.Random(0), 0, [0.0, 0.0]
    waiting: list[list[tuple[float, int, bytes]]] = [[], []]  # for each end, frames by the time at which they arrive
    while True:
        now = time.monotonic()
        for end, queue in zip(ends, waiting, strict=True):
            while queue and queue[0][0] <= now:
                with suppress(OSError):  # a device that is down
                    os.write(end, heapq.heappop(queue)[2])
        first = min((queue[0][0] for queue in waiting if queue), default=now + 1.0)
        for end in select.select(ends, [], [], max(0.0, first - now))[0]:
            with suppress(OSError):
                frame = os.read(end, FRAME)
                to = 1 - ends.index(end)
                if len(waiting[to]) < QUEUE and dice.random() >= slow.loss:
                    free[to] = max(free[to], time.monotonic()) + 8 * len(frame) / slow.rate
                    order += 1
                    heapq.heappush(waiting[to], (free[to] + slow.delay, order, frame))


def tap(name: str) -> int:
    """Create a TAP device and return its file."""
    found = os.open(Path("/dev/net/tun"), os.O_RDWR)
    fcntl.ioctl(found, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return found


if __name__ == "__main__":
    one, other, *numbers = sys.argv[1:]
    emulate(one, other, Slow(*map(float, numbers)))
