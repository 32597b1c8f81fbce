"""Ranks in a fraction of the time that a start of Python with torch takes: forks of a process that has imported it.

  python rank_server.py FD        # FD: a Unix socket, over which support/forked.py asks for ranks

A rank is a process of its own: in a session of its own, with the program as its main module and an end like that of any
Python process. It differs from one that was started in one thing: what torch and tutti_torch read from the environment
when they are imported is the server's.
"""
import json
import os
import pathlib
import runpy
import signal
import socket
import sys


def wait_for(rank: int, status_to: int) -> None:
    """Says how the rank ended, as subprocess would."""
    _, status = os.waitpid(rank, 0)
    os.write(status_to, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def serve(requests: socket.socket) -> dict[str, object] | None:
    """Returns in each rank with what was asked for; in the server None, when no more requests come."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not message:
            return None
        output, status_to = files
        if os.fork():
            os.close(output), os.close(status_to)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        read, write = os.pipe()
        rank = os.fork()
        if rank:
            os.close(read), os.close(write)
            requests.send(str(rank).encode())
            os.close(output)
            wait_for(rank, status_to)
        os.close(read), os.close(write), os.close(status_to), requests.close()
        os.setsid()
        os.dup2(output, 1), os.dup2(output, 2), os.close(output)
        return json.loads(message)


def main() -> None:
    import torch.distributed  # noqa: F401

    from support.groups import register_backend

    register_backend()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[arg-type]
    sys.argv = list(request["command"])  # type: ignore[call-overload]
    sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
