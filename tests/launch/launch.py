"""launch.CASE: an existing launcher starts ranks that meet, on one host or on several (network namespaces).

    launch.py CASE BUILD_FOLDER SOURCE_FOLDER

Status 77, with a line that says why: the launcher is not installed, or this system does not let us make hosts.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

NOT_RUN = 77
DEADLINE = 90  # seconds for each command, so that a hang ends; they take a few
OF_TUTTI = ("TUTTI_", "OMPI_", "PMI", "SLURM_", "MASTER_", "TORCHELASTIC_")

ALPHA, BETA = "alpha 10.99.0.1 eth0", "beta 10.99.0.2 eth0"
# For a shell on a host: it has no other users, and the default route leads there.
SECOND_NETWORK = ("ip link add eth1 type veth peer name nowhere; ip link set nowhere up; ip link set eth1 up; "
                  "ip address add 10.5.0.1/24 dev eth1; ip route add default dev eth1")


class NotRun(Exception):
    pass


def tool(name):
    if shutil.which(name) is None:
        raise NotRun(f"no {name} here")
    return name


def met(launcher, where, *ranks):
    """What each of the ranks says: who has launched it, and where the others are."""
    return [f"rank {rank} of {len(ranks)} met by {launcher} on {where}: {', '.join(ranks)}" for rank in range(len(ranks))]


class Launch:
    """One command and what it must say."""

    def __init__(self, build, source):
        self.source = pathlib.Path(source)
        self.meet = f"{build}/tests/test_launch_meet"
        self.hosts = [sys.executable, "-B", f"{source}/scripts/hosts.py"]
        self.python = f"{source}/.venv/bin/python"

    def run(self, *command, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_TUTTI)}
        done = subprocess.run(command, env={**environment, **variables}, text=True, timeout=DEADLINE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
        print("$", *command, f"\n{done.stdout}", flush=True)
        if done.returncode == NOT_RUN:
            raise NotRun(done.stdout.strip())
        return done

    def expect(self, lines, *command, **variables):
        done = self.run(*command, **variables)
        missing = [line for line in lines if line not in done.stdout.splitlines()]
        if missing or done.returncode != 0:
            sys.exit(f"status {done.returncode}; these lines were expected, and not there: {missing}")

    def expect_failure(self, pattern, *command, **variables):
        done = self.run(*command, **variables)
        if done.returncode == 0 or not re.search(pattern, done.stdout):
            sys.exit(f"status {done.returncode}; expected a failure that says: {pattern}")

    def torchrun(self):
        """torchrun, by the name under which it is in every copy of .venv."""
        if subprocess.run([tool(self.python), "-c", "import torch.distributed.run"], capture_output=True).returncode != 0:
            raise NotRun(f"no PyTorch in {self.python}")
        return [self.python, "-m", "torch.distributed.run"]

    # One host.

    def open_mpi(self):
        self.expect(met("Open MPI", "one host", *[f"{os.uname().nodename} - -"] * 3), tool("mpirun.openmpi"),
                    "--allow-run-as-root", "--oversubscribe", "-n", "3", self.meet)

    def mpich(self):
        self.expect(met("MPICH", "one host", *[f"{os.uname().nodename} - -"] * 3), tool("mpirun.mpich"), "-n", "3", self.meet)

    def torchrun_alone(self):
        self.expect(met("torchrun", "one host", *[f"{os.uname().nodename} - -"] * 2), *self.torchrun(), "--standalone",
                    "--nproc-per-node", "2", "--no-python", self.meet)

    def run_ranks(self):
        # In an environment for several hosts, which is not theirs.
        self.expect(met("tutti", "one host", *[f"{os.uname().nodename} - -"] * 3), f"{self.source}/examples/run_ranks.sh", "3",
                    self.meet, TUTTI_MASTER_ADDR="192.0.2.1", TUTTI_MASTER_PORT="29400")

    # Two hosts, without an address from the user.

    def open_mpi_on_two_hosts(self):
        self.expect(met("Open MPI", "several hosts", ALPHA, ALPHA, BETA), *self.hosts, "2", "--", tool("mpirun.openmpi"),
                    "--bind-to", "none", "--host", "alpha:2,beta:1", "-n", "3", self.meet)

    def mpich_on_two_hosts(self):
        self.expect(met("MPICH", "several hosts", ALPHA, BETA, BETA), *self.hosts, "2", "--", tool("mpirun.mpich"),
                    "-hosts", "alpha:1,beta:2", "-n", "3", self.meet)

    def torchrun_on_two_hosts(self):
        # Each host's torchrun knows its number; --ranks 1 tells it. What else it sets would count as a launcher.
        line = (f"exec env -u TUTTI_RANK -u TUTTI_SIZE -u TUTTI_MASTER_ADDR -u TUTTI_MASTER_PORT {shlex.join(self.torchrun())} "
                f"--nnodes 2 --node-rank $TUTTI_RANK --master-addr alpha --nproc-per-node 1 --no-python {self.meet}")
        self.expect(met("torchrun", "several hosts", ALPHA, BETA), *self.hosts, "2", "--ranks", "1", "--", "sh", "-c", line,
                    OMP_NUM_THREADS="1")

    def by_hand_on_two_hosts(self):
        line = f"unset TUTTI_JOB TUTTI_LOCAL_SIZE TUTTI_INTERFACE; TUTTI_MASTER_ADDR=alpha exec {self.meet}"
        self.expect(met("tutti", "several hosts", ALPHA, ALPHA, BETA, BETA), *self.hosts, "2", "--ranks", "2", "--", "sh",
                    "-c", line)

    def srun_form_on_two_hosts(self):
        # Slurm itself cannot run here; what srun sets can.
        line = ("export SLURM_PROCID=$TUTTI_RANK SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=$TUTTI_LOCAL_RANK SLURM_JOB_ID=981 "
                "SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_NNODES=2 SLURM_STEP_NODELIST=alpha,beta; "
                f"unset TUTTI_RANK TUTTI_SIZE TUTTI_JOB TUTTI_MASTER_ADDR TUTTI_MASTER_PORT; exec {self.meet}")
        self.expect(met("Slurm", "several hosts", ALPHA, ALPHA, BETA, BETA), *self.hosts, "2", "--ranks", "2", "--", "sh",
                    "-c", line)

    def examples(self):
        """Batch scripts and a job description cannot run here, but they can be read."""
        scripts = sorted(str(path) for path in (self.source / "examples/slurm").glob("*.sbatch"))
        jobs = sorted((self.source / "examples/kubernetes").glob("*.yaml"))
        if not scripts or not jobs:
            sys.exit("no examples found")
        for script in scripts:
            if self.run("bash", "-n", script).returncode != 0:
                sys.exit(f"{script} is no script that bash can read")
        try:
            import yaml  # pylint: disable=import-outside-toplevel
        except ImportError:
            raise NotRun("no PyYAML for the job description; the scripts can be read") from None
        for job in jobs:
            replicas = yaml.safe_load(job.read_text())["spec"]["mpiReplicaSpecs"]
            for name, replica in replicas.items():
                security = replica["template"]["spec"]["containers"][0].get("securityContext", {})
                if security.get("runAsUser", 0) != 0 and "add" in security.get("capabilities", {}):
                    sys.exit(f"{job}: {name}: Kubernetes gives added capabilities to root alone, not to runAsUser")
            command = replicas["Launcher"]["template"]["spec"]["containers"][0]["args"][0]
            if "\n" in command.strip() or self.run("bash", "-nc", command).returncode != 0:
                sys.exit(f"{job}: the launcher's command is not one line that bash can read: {command}")

    def ipv6_on_two_hosts(self):
        line = ("ip address flush dev eth0; ip address add fd00:99::$((TUTTI_RANK + 1))/64 dev eth0 nodad; "
                f"TUTTI_MASTER_ADDR=fd00:99::1 exec {self.meet}")
        self.expect(met("tutti", "several hosts", "alpha fd00:99::1 eth0", "beta fd00:99::2 eth0"), *self.hosts, "2",
                    "--ranks", "1", "--", "sh", "-c", line)

    def unique_id_on_two_hosts(self):
        # Its address must be one that the other host reaches, though nothing tells where the other one is.
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(f"{folder}/id")
            line = f"unset TUTTI_MASTER_ADDR TUTTI_INTERFACE; exec {self.meet} 20 {folder}/id"
            self.expect(met("tutti", "several hosts", ALPHA, BETA), *self.hosts, "2", "--ranks", "1", "--", "sh", "-c", line)

    # mpirun on a host that takes no part: rank 0 says what is needed, and with that it goes.

    def open_mpi_from_a_third_host(self):
        command = [*self.hosts, "3", "--", tool("mpirun.openmpi"), "--bind-to", "none", "--host", "beta:1,gamma:1", "-n", "2"]
        self.expect_failure("rank 0: Open MPI does not tell where the ranks on several hosts can meet; "
                            "set TUTTI_MASTER_ADDR to the host of rank 0", *command, self.meet)
        self.expect(met("Open MPI", "several hosts", BETA, "gamma 10.99.0.3 eth0"), *command, "-x", "TUTTI_MASTER_ADDR=beta",
                    self.meet)

    def mpich_from_a_third_host(self):
        command = [*self.hosts, "3", "--", tool("mpirun.mpich"), "-hosts", "beta,gamma", "-n", "2"]
        self.expect_failure(r"rank 0 cannot listen at 10\.99\.0\.1:\d+: that is not an address of its host beta, which has "
                            r"lo \(127\.0\.0\.1.*, eth0 \(10\.99\.0\.2.*; expected TUTTI_MASTER_ADDR to be the host of rank 0",
                            *command, self.meet, "2")
        self.expect(met("MPICH", "several hosts", BETA, "gamma 10.99.0.3 eth0"), *command, "-genv", "TUTTI_MASTER_ADDR",
                    "beta", self.meet)

    # What can be wrong, each with one sentence in time.

    def two(self, line):
        """Each of two ranks, on a host each, runs a shell's line; $m is the program that meets."""
        return [*self.hosts, "2", "--ranks", "1", "--", "sh", "-c", f"m='{self.meet} 4'; {line}"]

    def wrong_secret(self):
        # Rank 0, which goes on waiting for the right one, tells whom it has refused.
        failed = self.two('[ $TUTTI_RANK = 0 ] || export TUTTI_SECRET=other; exec $m')
        self.expect_failure(r"rank 1 cannot join at 10\.99\.0\.1:29400: its secret is not this job's", *failed)
        self.expect_failure(r"refused 10\.99\.0\.2:\d+: its secret is not this job's", *failed)

    def wrong_address(self):
        self.expect_failure(r"rank 0 of 2 has not come within 4 s; no process answers at 10\.99\.0\.77:29400: .*\(.*\); asked "
                            r"from host beta, 10\.99\.0\.2 on eth0",
                            *self.two('[ $TUTTI_RANK = 0 ] || export TUTTI_MASTER_ADDR=10.99.0.77; exec $m'))

    def asked_from(self):
        """Of several addresses, on a host whose default route is another network's."""
        line = (f"{SECOND_NETWORK}; [ $TUTTI_RANK = 0 ] || export TUTTI_MASTER_ADDR=10.99.0.77,10.99.0.78; "
                "unset TUTTI_INTERFACE; exec $m")
        self.expect_failure(r"rank 0 of 2 has not come within 4 s; .*; asked from host beta, 10\.99\.0\.2 on eth0",
                            *self.two(line))

    def no_such_name(self):
        self.expect_failure(r"rank 0 of 2 has not come within 4 s; cannot resolve 'nowhere'",
                            *self.two('[ $TUTTI_RANK = 0 ] || export TUTTI_MASTER_ADDR=nowhere; exec $m'))

    def wrong_interface(self):
        self.expect_failure(r"TUTTI_INTERFACE: host beta has none of 'ib0' that is up; it has lo \(.*\), eth0 "
                            r"\(10\.99\.0\.2.*\)", *self.two('[ $TUTTI_RANK = 0 ] || export TUTTI_INTERFACE=ib0; exec $m'))

    def no_listener(self):
        self.expect_failure(r"rank 0 of 2 has not come within 4 s; no process answers at 10\.99\.0\.1:29400: Connection refused; "
                            r"asked from host beta, 10\.99\.0\.2 on eth0", *self.two('[ $TUTTI_RANK = 0 ] || exec $m'))

    def port_in_use(self):
        other = ("import os, socket, subprocess; keep = socket.create_server(('10.99.0.1', 29400)); "
                 "raise SystemExit(subprocess.call(os.environ['m'].split()))")
        self.expect_failure(r"rank 0 cannot listen at 10\.99\.0\.1:29400: Address already in use",
                            *self.two(f'export m; [ $TUTTI_RANK = 0 ] || exec $m; exec {sys.executable} -c "{other}"'))

    def here_already(self):
        self.expect_failure(r"rank 1 cannot join at 10\.99\.0\.1:29400: rank 1 \(host (beta|gamma), pid \d+\) is here already",
                            *self.hosts, "3", "--ranks", "1", "--", "sh", "-c",
                            f"[ $TUTTI_RANK != 2 ] || export TUTTI_RANK=1; exec {self.meet} 4")

    def other_size(self):
        self.expect_failure(r"rank 1 cannot join at 10\.99\.0\.1:29400: it expects 3 ranks where rank 0 expects 2",
                            *self.two("[ $TUTTI_RANK = 0 ] || export TUTTI_SIZE=3; exec $m"))

    def loopback_address(self):
        self.expect_failure(r"no process answers at 127\.0\.0\.1:29400: Connection refused; only host beta itself is reached there",
                            *self.two("export TUTTI_MASTER_ADDR=127.0.0.1; exec $m"))

    def own_name_means_loopback(self):
        # As Debian's installer leaves it: on the host itself its name is 127.0.1.1, on others its address.
        line = ("[ $TUTTI_RANK -gt 1 ] || { sed 's/^10.99.0.1 alpha/127.0.1.1 alpha/' /etc/hosts > /dev/shm/hosts.$$; "
                "mount --bind /dev/shm/hosts.$$ /etc/hosts; }; unset TUTTI_INTERFACE; "
                f"TUTTI_MASTER_ADDR=alpha exec {self.meet}")
        self.expect(met("tutti", "several hosts", ALPHA, ALPHA, BETA, BETA), *self.hosts, "2", "--ranks", "2", "--", "sh",
                    "-c", line)

    def not_by_its_own_bridge(self):
        """Of the bootstrap server's addresses the first is that of a bridge of containers, which every host has with the
        same address: rank 1 reaches rank 0 there, and is the first to come. The others come by another."""
        line = ("[ $TUTTI_LOCAL_RANK != 0 ] || { ip link add docker0 type bridge; ip link set docker0 up; "
                "ip address add 172.17.0.1/16 dev docker0; }; "
                "unset TUTTI_INTERFACE; export TUTTI_MASTER_ADDR=172.17.0.1,10.99.0.1; " + self.after_rank_1())
        self.expect_after_rank_1([ALPHA, ALPHA, BETA, BETA], line)

    def not_by_its_own_name(self):
        """Rank 0's host has two networks, and calls itself by its address in the one that others do not reach."""
        line = (f"[ $TUTTI_RANK != 0 ] || {{ {SECOND_NETWORK}; "
                "sed 's/^10.99.0.1 alpha/10.5.0.1 alpha/' /etc/hosts > /dev/shm/hosts; "
                "mount --bind /dev/shm/hosts /etc/hosts; "
                "echo > $folder/ready; }; [ $TUTTI_RANK != 1 ] || read -r _ < $folder/ready; "
                "unset TUTTI_INTERFACE; [ $TUTTI_RANK != 1 ] || export TUTTI_INTERFACE=$wanted; "
                "export TUTTI_MASTER_ADDR=alpha; " + self.after_rank_1())
        self.expect_after_rank_1([ALPHA, ALPHA, BETA, BETA], line, wanted="")
        self.expect_after_rank_1([ALPHA, "alpha 10.5.0.1 eth1", BETA, BETA], line, wanted="eth1")

    def after_rank_1(self):
        """For a shell: meets, ranks 2 and 3 once rank 1 has come, as rank 0 tells."""
        told = ("while read -r line; do echo \"$line\"; case $line in *'rank 1 '*'is here') "
                "echo > $folder/2; echo > $folder/3;; esac; done")
        return (f"case $TUTTI_RANK in 0) TUTTI_LOG=debug {self.meet} 2>&1 | {told};; 1) exec {self.meet};; "
                f"*) read -r _ < $folder/$TUTTI_RANK; exec {self.meet};; esac")

    def expect_after_rank_1(self, ranks, line, **variables):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("2", "3", "ready"):
                os.mkfifo(f"{folder}/{name}")
            self.expect(met("tutti", "several hosts", *ranks), *self.hosts, "2", "--ranks", "2", "--", "sh", "-c", line,
                        folder=folder, **variables)

    def firewall(self):
        # Rank 0's host drops its answers, which to the other is the same as a firewall that drops the questions.
        failed = self.two('[ $TUTTI_RANK = 1 ] || ip route add blackhole 10.99.0.2; exec $m')
        self.expect_failure(r"rank 0 of 2 has not come within 4 s; no process answers at 10\.99\.0\.1:29400: Connection timed out "
                            r"\(.*firewall.*\); asked from host beta, 10\.99\.0\.2 on eth0", *failed)
        self.expect_failure(r"rank 1 of 2 has not come within 4 s; rank 0 is here; rank 0 waits at 10\.99\.0\.1:29400 on host "
                            "alpha", *failed)

    def no_route(self):
        self.expect_failure(r"no process answers at 10\.99\.0\.1:29400: Network is unreachable; asked from host beta",
                            *self.two('[ $TUTTI_RANK = 0 ] || { ip address flush dev eth0; unset TUTTI_INTERFACE; }; exec $m'))


def main():
    case, build, source = sys.argv[1:4]
    try:
        getattr(Launch(build, source), case)()
    except NotRun as reason:
        print(f"launch.{case}: not run: {reason}")
        return NOT_RUN
    return 0


if __name__ == "__main__":
    sys.exit(main())
