"""`tutti topology --json` in a job writes what its ranks plan from, and that file serves in place of what they find.

python3 topology_of_a_job.py TUTTI FOLDER: the program, and a folder to write to. Ranks count as on hosts by TUTTI_HOST_ID.
Status 77, with a line that says why: there is no network between them.
"""
import json
import os
import pathlib
import subprocess
import sys

NOT_RUN = 77
DEADLINE = 90  # seconds, so that a hang ends; they take a few
jobs = 0


def in_a_job(hosts, command, **variables):
    """What each rank has said, and its status."""
    global jobs
    jobs += 1
    common = {name: value for name, value in os.environ.items() if not name.startswith("TUTTI_")}
    common |= {"TUTTI_JOB": f"{os.getpid()}.{jobs}", "TUTTI_SIZE": str(len(hosts)), "TUTTI_TIMEOUT": "60s", **variables}
    ranks = [subprocess.Popen(command, env=common | {"TUTTI_RANK": str(rank), "TUTTI_HOST_ID": host}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
             for rank, host in enumerate(hosts)]
    said = [rank.communicate(timeout=DEADLINE)[0] for rank in ranks]
    if any("no network" in text for text in said):
        print("tutti-test: not run:", said[0])
        sys.exit(NOT_RUN)
    return said, [rank.returncode for rank in ranks]


def main():
    tutti, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    written = folder / "job_topology.json"
    written.unlink(missing_ok=True)
    hosts = ["a", "b", "a", "b"]
    said, status = in_a_job(hosts, [tutti, "topology", "--json", str(written)])
    assert (said, status) == ([""] * 4, [0] * 4), (said, status)
    job = json.loads(written.read_text())
    assert len(job["hosts"]) == 2 and job["switches"] and job["links"], job
    assert [rank["host"] for rank in job["ranks"]] == [0, 1, 0, 1], job["ranks"]

    # A job that is given the file plans from it, and writes the same again.
    said, status = in_a_job(hosts, [tutti, "topology", "--json", "-"], TUTTI_TOPOLOGY=str(written))
    assert json.loads(said[0]) == job and said[1:] == [""] * 3, (said, status)
    explained = subprocess.run([tutti, "explain", "--collective", "all_reduce", "--topology", str(written)], text=True,
                               stdout=subprocess.PIPE, timeout=DEADLINE, check=True).stdout
    assert "on 4 ranks of 2 host(s)" in explained, explained

    said, status = in_a_job(["", ""], [tutti, "topology", "--json", "-"])
    assert [rank["host"] for rank in json.loads(said[0])["ranks"]] == [0, 0] and said[1] == "", (said, status)
    # Rank 0 says why it cannot write, and no rank waits for it.
    said, status = in_a_job(hosts, [tutti, "topology", "--json", "/none/job.json"])
    assert "cannot write '/none/job.json': No such file" in said[0] and status == [2, 0, 0, 0], (said, status)


main()
