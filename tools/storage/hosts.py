# SPDX-License-Identifier: Apache-2.0
"""Hosts that start at once on an empty cache on S3: each program is compiled once, by one of them.

    python -m tools.storage.hosts [--hosts 8] [--programs 6] [--plain]

S3 is moto's server. Each host is a process in a network namespace and with a host name of its own, joined with the
others by a bridge (needs root and `ip`); with `--plain`, or where that is not allowed, all are processes of this
host, which is said. All wait for each other, then each asks for all programs in an order of its own. Status 1 where a
program was compiled more than once, or not by anybody.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tools.storage.kills import graph, session
from trnlab.runtime.device import compile_graph

SUBNET = "10.213.7"
BUCKET = "hosts"


def work(place: str, number: int, programs: int) -> None:
    """One host: says that it is ready, waits for a line, then asks for all programs and says how each was had."""
    now = session(place)
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    order = random.Random(number).sample(range(programs), programs)
    had = {i: compile_graph(graph(i), now).cache for i in order}
    said = {"host": socket.gethostname(), "had": had, "seconds": time.monotonic() - started}
    print(json.dumps(said), flush=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """The names of so many network namespaces that reach this one at `SUBNET`.1. Raises CalledProcessError where
    they are not allowed."""
    own = f"tl{os.getpid() % 100_000}"
    with ExitStack() as stack:

        def gone(*arguments: str) -> None:
            with suppress(subprocess.CalledProcessError):
                _ip(*arguments)

        _ip("link", "add", own, "type", "bridge")
        stack.callback(gone, "link", "del", own)
        _ip("addr", "add", f"{SUBNET}.1/24", "dev", own)
        _ip("link", "set", own, "up")
        names = [f"{own}-{i}" for i in range(count)]
        for i, name in enumerate(names):
            _ip("netns", "add", name)
            stack.callback(gone, "netns", "del", name)
            _ip("link", "add", f"{own}v{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", f"{own}v{i}", "master", own, "up")
            for arguments in (("addr", "add", f"{SUBNET}.{10 + i}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
                _ip("-n", name, *arguments)
        yield names


@contextmanager
def served(address: str) -> Iterator[str]:
    """The endpoint of an S3 with an empty bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    url = f"http://{address}:{server.get_host_and_port()[1]}"
    try:
        boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        ).create_bucket(Bucket=BUCKET)
        yield url
    finally:
        server.stop()


def _environment(url: str) -> dict[str, str]:
    return {
        **os.environ,
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


def started_at_once(url: str, wrappers: list[list[str]], programs: int) -> list[dict[str, object]]:
    """What each host says. wrappers: the start of the command of each. Raises RuntimeError for one that fails."""
    own = [
        sys.executable,
        "-m",
        "tools.storage.hosts",
        "--programs",
        str(programs),
        "--place",
        f"s3://{BUCKET}/cache",
    ]
    hosts = [
        subprocess.Popen(
            [*wrapper, *own, "--number", str(i)],
            env=_environment(url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i, wrapper in enumerate(wrappers)
    ]
    for host in hosts:
        assert host.stdout is not None
        host.stdout.readline()
    for host in hosts:
        assert host.stdin is not None
        host.stdin.write("go\n")
        host.stdin.flush()
    said = [host.communicate()[0] for host in hosts]
    if any(host.returncode for host in hosts):
        raise RuntimeError(f"hosts ended with {[host.returncode for host in hosts]}")
    return [json.loads(each) for each in said]


def run(hosts: int, programs: int, plain: bool = False) -> tuple[list[dict[str, object]], bool]:
    """What each host says, and whether they were in namespaces of their own."""
    with ExitStack() as stack:
        names: list[str] = []
        if not plain and shutil.which("ip") and shutil.which("unshare"):
            with suppress(subprocess.CalledProcessError):
                names = stack.enter_context(namespaces(hosts))
        url = stack.enter_context(served(f"{SUBNET}.1" if names else "127.0.0.1"))
        inside = 'hostname "$0"; exec "$@"'
        wrappers = [
            ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", inside, f"host-{i}"]
            for i, name in enumerate(names)
        ] or [[] for _ in range(hosts)]
        return started_at_once(url, wrappers, programs), bool(names)


def main() -> int:
    """The command; returns 1 when a program was not compiled exactly once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--programs", type=int, default=6)
    parser.add_argument("--plain", action="store_true", help="processes of this host")
    parser.add_argument("--place", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.place:
        work(args.place, args.number, args.programs)
        return 0
    said, apart = run(args.hosts, args.programs, args.plain)
    compiled: Counter[str] = Counter()
    for each in said:
        had = each["had"]
        assert isinstance(had, dict)
        mine = [program for program, how in had.items() if how == "miss"]
        compiled.update(mine)
        print(f"{each['host']}: compiled {len(mine)} of {len(had)} programs, {each['seconds']:.1f} s")
    where = "in namespaces of their own" if apart else "as processes of one host"
    print(f"{len(said)} hosts {where}, {args.programs} programs, {compiled.total()} compilations")
    return 0 if sorted(compiled.values()) == [1] * args.programs else 1


if __name__ == "__main__":
    sys.exit(main())
