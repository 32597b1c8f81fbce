#!/usr/bin/env python3
"""What TCP itself gives between two hosts: each sends `size` bytes to the other at the same time, as the ranks of an
all-reduce of two hosts do, over one connection, with no protocol around it. Both sides poll.

    roofline_tcp.py                      # on one host: prints nothing, serves one measurement
    roofline_tcp.py --to ADDRESS -J FILE # on the other: JSON with microseconds per exchange, for each of the sizes
"""
import argparse
import json
import socket
import statistics
import struct
import time

from compare_measure import parse_size

PORT = 29399
CHUNK = 1 << 20
LEAST_OF_PART = 100  # exchanges, as of the programs


def exchange(connection, out, into):
    """Sends all of `out` and fills `into`; does not wait for the one before it does the other."""
    size = len(out)
    sent = received = 0
    while sent < size or received < size:
        if sent < size:
            try:
                sent += connection.send(out[sent:sent + CHUNK])
            except BlockingIOError:
                pass
        if received < size:
            try:
                got = connection.recv_into(into[received:])
                if got == 0:
                    raise OSError("the other side has ended")
                received += got
            except BlockingIOError:
                pass


def prepare(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def rounds_of(connection, size, count, parts=1):
    out, into = memoryview(bytearray(size)), memoryview(bytearray(size))
    exchange(connection, out, into)
    parts = max(1, min(parts, count // LEAST_OF_PART))
    times = []
    for part in range(parts):
        number = count * (part + 1) // parts - count * part // parts
        begun = time.perf_counter()
        for _ in range(number):
            exchange(connection, out, into)
        times.append((time.perf_counter() - begun) / number)
    return statistics.median(times)


def serve():
    with socket.create_server(("", PORT)) as listener:
        listener.settimeout(30)
        connection = prepare(listener.accept()[0])
    order = memoryview(bytearray(16))
    while True:
        exchange(connection, order[:16], order)
        size, count = struct.unpack("qq", order)
        if count == 0:
            return
        rounds_of(connection, size, count)


def ask(connection, size, count):
    exchange(connection, memoryview(struct.pack("qq", size, count)), memoryview(bytearray(16)))


def measure(address, sizes, seconds, parts):
    until = time.monotonic() + 10
    while True:
        try:
            connection = prepare(socket.create_connection((address, PORT), timeout=5))
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
    rows = []
    for size in sizes:
        ask(connection, size, 3)
        once = rounds_of(connection, size, 3)
        count = max(3, min(20000, int(seconds / once)))
        ask(connection, size, count)
        rows.append({"size": size, "time": rounds_of(connection, size, count, parts) * 1e6})
    ask(connection, 0, 0)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", metavar="ADDRESS")
    parser.add_argument("-b", dest="least", type=parse_size, default="8", help="smallest size")
    parser.add_argument("-e", dest="most", type=parse_size, default="16M", help="largest size")
    parser.add_argument("-f", dest="factor", type=int, default=8, help="between sizes")
    parser.add_argument("--time", type=float, default=0.1, help="seconds per size, at least")
    parser.add_argument("--parts", type=int, default=1, help="the median over so many of each counts, as of the programs")
    parser.add_argument("-J", dest="json", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.to is None:
        return serve()
    sizes = [arguments.least]
    while sizes[-1] * arguments.factor <= arguments.most:
        sizes.append(sizes[-1] * arguments.factor)
    rows = measure(arguments.to, sizes, arguments.time, arguments.parts)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"results": rows}, file)
    else:
        for row in rows:
            print(f"{row['size']:10} B {row['time']:10.1f} us {row['size'] / row['time'] / 1000:8.3f} GB/s each way")


main()
