"""The ranks run the same tests in step: after each test they agree on its outcome, and rank 0 reports it.

The fixture `world` gives the groups. A test that fails on one rank fails on all; the groups are then made anew, since
the state that a failed call has left is unknown. A test that hangs ends the run with the stacks of all threads.
"""
import faulthandler
import os
import signal
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.groups import World

SECONDS_PER_TEST = 120  # far more than any needs; a hang shows its stacks then
MEETING = timedelta(seconds=SECONDS_PER_TEST + 30)


class Meeting:
    """Where the ranks tell each other how a test went: a store of its own, so that no group needs to work for it."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.store = dist.TCPStore(address, port, self.size, is_master=not shared and self.rank == 0, timeout=MEETING)
        self.number = 0

    def exchange(self, text: str) -> list[str]:
        """Every rank's text, in rank order."""
        self.number += 1
        keys = [f"test/{self.number}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], text)
        self.store.wait(keys, MEETING)
        return [self.store.get(key).decode() for key in keys]


def pytest_configure(config: pytest.Config) -> None:
    if "RANK" not in os.environ:
        raise pytest.UsageError("these tests run in several ranks: use run_in_ranks.py")
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGTERM, chain=True)  # the launcher's, when another rank has hung
    config.meeting = Meeting()  # type: ignore[attr-defined]
    config.world = World(config.meeting.store, config.meeting.rank, config.meeting.size)  # type: ignore[attr-defined]
    if config.meeting.rank != 0:  # type: ignore[attr-defined]
        sys.stdout = sys.stderr = open(os.devnull, "w")
        config.pluginmanager.unregister(name="terminalreporter")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    meeting = config.meeting  # type: ignore[attr-defined]
    names = meeting.exchange("\n".join(item.nodeid for item in items))
    if len(set(names)) > 1:
        raise pytest.UsageError("the ranks have collected different tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    faulthandler.dump_traceback_later(SECONDS_PER_TEST, exit=True, file=sys.__stderr__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    meeting = item.config.meeting  # type: ignore[attr-defined]
    if call.when == "teardown":
        return report
    if report.failed:
        item.config.world.renew()  # type: ignore[attr-defined]  # who waits for this rank learns that it has gone
    outcomes = meeting.exchange("" if not report.failed else report.longreprtext or "failed")
    failed = [rank for rank, text in enumerate(outcomes) if text]
    if failed:
        if not report.failed or meeting.rank == 0:
            report.outcome = "failed"
            report.longrepr = "\n".join(f"---- rank {rank} ----\n{outcomes[rank]}" for rank in failed)
        item.config.world.renew()  # type: ignore[attr-defined]
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    faulthandler.dump_traceback_later(SECONDS_PER_TEST, exit=True, file=sys.__stderr__)
    config.world.close()  # type: ignore[attr-defined]
    faulthandler.cancel_dump_traceback_later()
    if config.meeting.rank != 0:  # type: ignore[attr-defined]
        session.exitstatus = 0  # rank 0 speaks for all, and the launcher ends the others at the first that fails


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """The groups. Seeds torch the same way on all ranks."""
    torch.manual_seed(1)
    return request.config.world  # type: ignore[attr-defined, no-any-return]
