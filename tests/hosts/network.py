"""Hosts on one machine: network namespaces that are connected by a bridge, each with folders of its own."""

from __future__ import annotations

import ctypes
import http.client
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000


def why_not() -> str:
    """Why there can be no namespaces here; empty where there can."""
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (package iproute2)"
    name = f"syncline-try-{os.getpid()}"
    tried = subprocess.run(
        ["ip", "netns", "add", name], check=False, capture_output=True, text=True
    )
    if tried.returncode != 0:
        return f"network namespaces cannot be made here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    mounted = subprocess.run(
        ["unshare", "--mount", "true"], check=False, capture_output=True, text=True
    )
    return (
        f"mount namespaces cannot be made: {mounted.stderr.strip()}" if mounted.returncode else ""
    )


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


class Host:
    """Processes that are started here have this host's addresses, and see `folders` (path as they name it: the
    folder that lies there)."""

    def __init__(self, name: str, address: str, port: str) -> None:
        self.name = name
        self.address = address
        self.port = port  # of the switch
        self.folders: dict[Path, Path] = {}

    def command(self, arguments: Sequence[str]) -> list[str]:
        mounts = "".join(f"mount --bind '{own}' '{seen}' && " for seen, own in self.folders.items())
        return [
            *("nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount"),
            *("sh", "-c", f'{mounts}exec "$@"', "sh"),
            *arguments,
        ]

    def call(self, function: Callable[[], T]) -> T:
        """Runs a function on a thread that has this host's network; sockets that it makes keep it."""

        def run() -> T:
            with open(f"/run/netns/{self.name}") as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            return function()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(run).result()


class HostConnection(http.client.HTTPConnection):
    """A connection of HTTP that is made from inside a host."""

    def __init__(self, host: Host, address: str, port: int, timeout: float) -> None:
        super().__init__(address, port, timeout=timeout)
        self._where = host

    def connect(self) -> None:
        address = (self.host, self.port)
        self.sock = self._where.call(lambda: socket.create_connection(address, self.timeout))


class Network:
    """Hosts 10.77.0.1, 10.77.0.2, …"""

    def __init__(self, count: int) -> None:
        prefix = f"sl{os.getpid() % 100000}"
        self._switch = f"{prefix}-switch"
        self.hosts: list[Host] = []
        ip("netns", "add", self._switch)
        try:
            ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self._switch, "link", "set", "bridge", "up")
            for i in range(count):
                self._add(Host(f"{prefix}-{i}", f"10.77.0.{i + 1}", f"port{i}"))
        except BaseException:
            self.close()
            raise

    def _add(self, host: Host) -> None:
        ip("netns", "add", host.name)
        self.hosts.append(host)
        peer = ("peer", "name", "eth0", "netns", host.name)
        ip("link", "add", host.port, "netns", self._switch, "type", "veth", *peer)
        ip("-n", self._switch, "link", "set", host.port, "master", "bridge")
        ip("-n", self._switch, "link", "set", host.port, "up")
        ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
        ip("-n", host.name, "link", "set", "eth0", "up")
        ip("-n", host.name, "link", "set", "lo", "up")

    def cut(self, host: Host) -> None:
        """As if its cable were pulled at the switch: nothing arrives, and nobody is told."""
        ip("-n", self._switch, "link", "set", host.port, "nomaster")

    def mend(self, host: Host) -> None:
        ip("-n", self._switch, "link", "set", host.port, "master", "bridge")

    def close(self) -> None:
        for name in [*(host.name for host in self.hosts), self._switch]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
