"""A small cluster on one machine: every process in its own network namespace, on a bridge, behind a rate limit.

    with Network(workers=4, rate="1gbit") as network:
        process = network.start(rank, [sys.executable, "worker.py"], env)

Inside, `INTERFACE` is the only way to the other processes, so its counters count every byte sent. Needs root, `ip` and `tc`
(iproute2); `Network.missing()` says what is missing. Linux removes the namespaces when the block ends, even after an error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INTERFACE = "lt0"
# A burst of 256 KiB, the queue of a real network card; at most 100 ms of traffic wait behind it.
TOKEN_BUCKET = ("burst", "256kb", "latency", "100ms")


class NetworkError(RuntimeError):
    """The namespaces cannot be made. The message says which command failed and how."""


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or f'exit {done.returncode}'}")


class Network:
    """`workers` namespaces. rate: of each link in both directions, in tc's form ("1gbit"); None: no limit."""

    def __init__(self, workers: int, rate: str | None) -> None:
        self.workers, self.rate = workers, rate
        tag = f"{os.getpid() % 100000}"
        self._bridge = f"ltb{tag}"
        self._spaces = [f"lt{tag}n{rank}" for rank in range(workers)]
        self._links = [f"lt{tag}v{rank}" for rank in range(workers)]

    @staticmethod
    def missing() -> str | None:
        """Why such a network is impossible here, or None."""
        for tool in ("ip", "tc"):
            if not shutil.which(tool):
                return f"{tool} is not installed (package iproute2)"
        if os.geteuid() != 0:
            return "network namespaces need root"
        probe = f"ltp{os.getpid() % 100000}"
        try:
            _do("ip", "netns", "add", probe)
            _do("ip", "netns", "del", probe)
        except NetworkError as error:
            return str(error)
        return None

    def address(self, rank: int) -> str:
        """IPv4 address of a worker."""
        return f"10.77.0.{rank + 1}"

    def __enter__(self) -> Network:
        try:
            _do("ip", "link", "add", self._bridge, "type", "bridge")
            _do("ip", "link", "set", self._bridge, "up")
            for rank, (space, link) in enumerate(zip(self._spaces, self._links, strict=True)):
                _do("ip", "netns", "add", space)
                _do("ip", "link", "add", link, "type", "veth", "peer", "name", INTERFACE, "netns", space)
                _do("ip", "link", "set", link, "master", self._bridge)
                _do("ip", "link", "set", link, "up")
                inside = ("ip", "-n", space)
                _do(*inside, "addr", "add", f"{self.address(rank)}/24", "dev", INTERFACE)
                _do(*inside, "link", "set", INTERFACE, "up")
                _do(*inside, "link", "set", "lo", "up")
                if self.rate:
                    limit = ("root", "tbf", "rate", self.rate, *TOKEN_BUCKET)
                    _do("tc", "qdisc", "add", "dev", link, *limit)  # what the worker receives
                    _do("tc", "-n", space, "qdisc", "add", "dev", INTERFACE, *limit)  # what it sends
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes everything. What does not exist is no error."""
        for space in self._spaces:
            subprocess.run(("ip", "netns", "del", space), capture_output=True, check=False)
        for link in (*self._links, self._bridge):
            subprocess.run(("ip", "link", "del", link), capture_output=True, check=False)

    def start(self, rank: int, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Starts a worker in its namespace, with torch.distributed's environment ("env://") besides `env`."""
        rendezvous = {
            "MASTER_ADDR": self.address(0), "MASTER_PORT": "29577", "RANK": str(rank),
            "WORLD_SIZE": str(self.workers), "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": INTERFACE,
        }  # fmt: skip
        return subprocess.Popen(
            ["ip", "netns", "exec", self._spaces[rank], *command],
            env={**os.environ, **rendezvous, **env}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


def answers(started: Sequence[subprocess.Popen[str]], seconds: float) -> list[Any]:
    """The last line that each worker printed, parsed as JSON. If one failed, raises NetworkError with its errors."""
    outputs = [process.communicate(timeout=seconds) for process in started]
    for rank, process in enumerate(started):
        if process.returncode:
            raise NetworkError(f"worker {rank} of {len(started)}: exit {process.returncode}\n{outputs[rank][1][-3000:]}")
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def bytes_sent() -> int | None:
    """Bytes that this worker has sent so far; None outside such a network."""
    counter = Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes")
    return int(counter.read_text()) if counter.exists() else None
