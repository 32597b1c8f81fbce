#!/usr/bin/env python3
"""Hosts on one machine: network namespaces, each with a name and an address of its own, joined by a switch (a bridge in
a namespace of its own).

    ./dev hosts 2 --ranks 2 -- build/bin/all_reduce_perf     two hosts with two ranks each, by Tutti's environment
    ./dev hosts 2 -- mpirun -n 2 --host alpha,beta build/bin/all_reduce_perf   on the first host, as on a cluster's head
    ./dev hosts 2 --rate 1gbit --ranks 1 -- ...              each host's link carries 1 Gbit/s, both ways

A command without --ranks runs on the first host and finds TUTTI_HOSTS in its environment; Open MPI's and MPICH's mpirun
start their ranks on the others, as by ssh, through this program (`hosts.py --on HOST COMMAND...`).

Nothing is left behind, however this ends: the namespaces have no names and live as long as the processes that hold
them, which end with this one; what still runs on the hosts is killed. Needs root. Where namespaces are not allowed it
says so and ends with status 77.

--serve is for programs (tests/hosts/hosts.h). It says "ready PID PID ...": the processes whose namespaces are the hosts,
or "unavailable WHY". Then each line of standard input is an order, "link HOST up|down" or "rate RATE|none", answered by
"ok" or "error WHY". It ends with standard input.
"""
import argparse
import math
import os
import pathlib
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time

NAMES = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
NETWORK = "10.99.0"
DEVICE = "eth0"
# What makes a host: nsenter's option, and the file of /proc/PID/ns. Without an IPC namespace (and a /dev/shm) of its own
# UCX finds shared memory between hosts.
NAMESPACES = {"net": "net", "uts": "uts", "ipc": "ipc", "mount": "mnt"}
PORT = 29400  # where Tutti's ranks meet, in the first host's namespace
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"  # of the namespace of who looks
# Bytes that a link of limited rate takes at once: as small as the largest piece that the kernel hands over whole, so
# that a message of a few hundred KiB is limited already.
BURST = "128kb"

# A host's own name, its own /sys (which lists the network devices of who mounted it), its own /etc/hosts (by way of a
# file system in memory, so that no file is left), and a process that lives until its standard input ends.
HOLD = """hostname "$1" && mount -t tmpfs hosts /sys && printf %s "$2" > /sys/hosts && mount --bind /sys/hosts /etc/hosts &&
umount /sys && mount -t sysfs sysfs /sys && mount -t tmpfs shm /dev/shm && ip link set lo up && echo ready && exec cat"""


UNAVAILABLE = 77
GRACE_SECONDS = 10  # for the other ranks, after the first failure


class Unavailable(Exception):
    """This system does not let us make hosts; says why."""


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or f'status {done.returncode}'}")


def why_not():
    """Why there cannot be hosts here, or None."""
    missing = [tool for tool in ("ip", "tc", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found (Debian: iproute2, util-linux)"
    return None if os.geteuid() == 0 else "network namespaces need root"


def congestion_control(name):
    """For argparse: one that any user may choose, since a namespace must be able to."""
    allowed = pathlib.Path(CONGESTION).with_name("tcp_allowed_congestion_control").read_text().split()
    if name in allowed:
        return name
    raise argparse.ArgumentTypeError(f"'{name}'; expected one of: {' '.join(allowed)}")


def entering(pid, *command):
    """The command line that runs `command` in the namespaces of `pid`."""
    files = [f"--{kind}=/proc/{pid}/ns/{file}" for kind, file in NAMESPACES.items()]
    return ["nsenter", *files, f"--wd={os.getcwd()}", "--", *command]


class Hosts:
    """`count` hosts, numbered from 0. Use as a context manager, or call close()."""

    def __init__(self, count, rate=None, congestion=None):
        if not 1 <= count <= len(NAMES):
            raise ValueError(f"{count} hosts; expected 1 to {len(NAMES)}")
        if reason := why_not():
            raise Unavailable(reason)
        self.names = NAMES[:count]
        self.holders = []
        self.rated = False
        table = "127.0.0.1 localhost\n" + "".join(f"{self.address(host)} {name}\n" for host, name in enumerate(self.names))
        try:
            for name in [*self.names, "switch"]:
                self.holders.append(self._hold(name, table))
            self._join(congestion)
            self.rate(rate)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @staticmethod
    def address(host):
        return f"{NETWORK}.{host + 1}"

    def pid(self, host):
        """The process that holds the host's namespaces."""
        return self.holders[host].pid

    def enter(self, host, *command):
        """The command line that runs `command` on the host."""
        return entering(self.pid(host), *command)

    def environment(self):
        """For a command on the first host, so that MPI's launchers find the others."""
        agent = os.path.abspath(__file__)
        return {"TUTTI_HOSTS": " ".join(f"{name}={self.pid(host)}" for host, name in enumerate(self.names)),
                "OMPI_MCA_plm_rsh_agent": f"{agent} --on", "OMPI_MCA_oob_tcp_if_include": DEVICE,
                "OMPI_MCA_btl_tcp_if_include": DEVICE, "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
                "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": agent, "HYDRA_IFACE": DEVICE}

    def start_ranks(self, each, command, variables=None, **options):
        """Starts `command` `each` times on each host, as ranks of one job, host by host. They end with this process."""
        size = each * len(self.names)
        job = {"TUTTI_SIZE": str(size), "TUTTI_LOCAL_SIZE": str(each), "TUTTI_MASTER_ADDR": self.address(0),
               "TUTTI_MASTER_PORT": str(PORT), "TUTTI_INTERFACE": DEVICE, "TUTTI_JOB": secrets.token_hex(8),
               "TUTTI_SECRET": secrets.token_hex(16)}
        return [subprocess.Popen(self.enter(rank // each, "setpriv", "--pdeathsig", "KILL", *command), **options,
                                 env={**os.environ, **job, "TUTTI_RANK": str(rank), "TUTTI_LOCAL_RANK": str(rank % each),
                                      **(variables or {})}) for rank in range(size)]

    def rate(self, rate):
        """Limits every host's link, both ways, to tc's `rate` ("1gbit"); None: no limit."""
        for host in range(len(self.names)):
            for where, device in ((host, DEVICE), (-1, f"port{host}")):
                if rate:
                    self._on(where, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", BURST,
                             "latency", "50ms")
                elif self.rated:
                    self._on(where, "tc", "qdisc", "del", "dev", device, "root")
        self.rated = bool(rate)

    def link(self, host, up):
        """Takes the host's cable out of the switch, or puts it back."""
        self._on(-1, "ip", "link", "set", f"port{host}", "up" if up else "down")

    def clear(self):
        """Kills what still runs on the hosts."""
        for pid in self._inside():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self):
        """Kills what still runs on the hosts, and lets go of them."""
        self.clear()
        for holder in self.holders:
            holder.kill()
            holder.wait()
            holder.stdin.close()
            holder.stdout.close()
        self.holders = []

    def _inside(self):
        spaces = {holder.space for holder in self.holders}
        spared = {os.getpid(), *(holder.pid for holder in self.holders)}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in spared:
                try:
                    if os.readlink(entry / "ns/net") in spaces:
                        yield int(entry.name)
                except OSError:
                    pass  # gone already, or another user's

    @staticmethod
    def _hold(name, table):
        holder = subprocess.Popen(["unshare", *[f"--{kind}" for kind in NAMESPACES], "sh", "-c", HOLD, "hold", name, table],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if holder.stdout.readline() != b"ready\n":
            words = holder.stderr.read().decode().strip()
            holder.wait()
            raise Unavailable(f"this system does not allow network namespaces ({words or 'no reason given'})")
        holder.stderr.close()
        holder.space = os.readlink(f"/proc/{holder.pid}/ns/net")
        return holder

    def _join(self, congestion):
        self._on(-1, "ip", "link", "add", "switch", "type", "bridge", "forward_delay", "0")
        self._on(-1, "ip", "link", "set", "switch", "up")
        for host in range(len(self.names)):
            self._on(-1, "ip", "link", "add", f"port{host}", "type", "veth", "peer", "name", DEVICE,
                     "netns", str(self.pid(host)))
            self._on(-1, "ip", "link", "set", f"port{host}", "master", "switch", "up")
            self._on(host, "ip", "address", "add", f"{self.address(host)}/24", "dev", DEVICE)
            self._on(host, "ip", "link", "set", DEVICE, "up")
            if congestion:
                self._on(host, "sh", "-c", f"echo {shlex.quote(congestion)} > {CONGESTION}")

    def _on(self, host, *command):
        run("nsenter", f"--net=/proc/{self.pid(host)}/ns/net", "--", *command)


def wait_for(processes, limit=math.inf):
    """The exit status of the first that fails, or 0. When one has failed the others are given a while; those are killed
    that do not end by then, or within `limit` seconds."""
    until = time.monotonic() + limit
    status = 0
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        failed = [process.returncode for process in processes if process.returncode]
        if failed and status == 0:
            status = failed[0]
            until = min(until, time.monotonic() + GRACE_SECONDS)
        time.sleep(0.02)
    for process in processes:
        process.kill()
        status = process.wait() if status == 0 else status
    return status if status >= 0 else 128 - status


def serve(count, rate):
    try:
        hosts = Hosts(count, rate)
    except (Unavailable, OSError) as error:
        return print(f"unavailable {error}", flush=True)
    with hosts:
        print("ready", *[hosts.pid(host) for host in range(count)], flush=True)
        for line in sys.stdin:
            try:
                obey(hosts, line.split())
                print("ok", flush=True)
            except (OSError, ValueError) as error:
                print(f"error {error}".replace("\n", " "), flush=True)
    return None


def obey(hosts, words):
    match words:
        case ["link", host, ("up" | "down") as state]:
            hosts.link(int(host), state == "up")
        case ["rate", rate]:
            hosts.rate(None if rate == "none" else rate)
        case _:
            raise ValueError(f"'{' '.join(words)}' is no order; expected link HOST up|down, or rate RATE|none")


def on_host(words):
    """What MPI's launchers take for ssh: [-option ...] HOST COMMAND..., where the command is for a shell."""
    while words and words[0].startswith("-"):
        words = words[1:]
    known = dict(entry.split("=") for entry in os.environ.get("TUTTI_HOSTS", "").split())
    if not words or words[0] not in known:
        sys.exit(f"hosts: {words[0] if words else 'nothing'} is none of the hosts {', '.join(known) or '(there are none)'}")
    command = entering(known[words[0]], "sh", "-c", " ".join(words[1:]))
    os.execvp(command[0], command)


def main():
    if "--on" in sys.argv[1:2] or ("TUTTI_HOSTS" in os.environ and sys.argv[1:2] != ["--serve"]):
        on_host([word for word in sys.argv[1:] if word != "--on"])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="hosts")
    parser.add_argument("count", type=int, choices=range(1, len(NAMES) + 1), metavar="HOSTS", help="how many")
    parser.add_argument("--ranks", type=int, help="start so many ranks of COMMAND on each host")
    parser.add_argument("--rate", help="of each host's link, in tc's words, such as 1gbit")
    parser.add_argument("--serve", action="store_true", help="for programs")
    parser.add_argument("--congestion", metavar="NAME", type=congestion_control, help="TCP's congestion control on the hosts, such as reno; else the "
                                                             "kernel's own")
    parser.usage = "hosts HOSTS [--ranks N] [--rate RATE] [--congestion NAME] -- COMMAND..."
    own = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    arguments = parser.parse_args(own)
    command = sys.argv[len(own) + 2:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.serve:
        return serve(arguments.count, arguments.rate)
    if not command:
        parser.error("which command? It stands behind --")
    try:
        with Hosts(arguments.count, arguments.rate, arguments.congestion) as hosts:
            if arguments.ranks:
                return wait_for(hosts.start_ranks(arguments.ranks, command))
            return wait_for([subprocess.Popen(hosts.enter(0, *command),
                                              env={**os.environ, **hosts.environment()})])
    except Unavailable as error:
        print(f"hosts: {error}", file=sys.stderr)
        return UNAVAILABLE
    except OSError as error:
        sys.exit(f"hosts: {error}")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
