"""The groups under test, and beside each a Gloo group of the same ranks, which is the oracle."""
import dataclasses
import gc
import os
import random
from datetime import timedelta

import pytest
import torch.distributed as dist

from support.launch import BACKEND

TIMEOUT = timedelta(seconds=30)
# For tests of what does not depend on the number of ranks, and takes long.
RANKS = int(os.environ.get("WORLD_SIZE", "2"))
two_ranks_show_it = pytest.mark.skipif(RANKS > 2, reason="2 ranks show it")


def register_backend() -> None:
    if BACKEND == "tutti":
        import tutti_torch  # noqa: F401


@dataclasses.dataclass
class Pair:
    """A group under test and its oracle. `rank` is this process's rank in them; -1 if it is not a member."""
    ranks: list[int]
    rank: int
    tutti: dist.ProcessGroup
    gloo: dist.ProcessGroup

    @property
    def size(self) -> int:
        return len(self.ranks)


class World:
    """The default group, made when first used, and the others made of it."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._store, self.rank, self.size = store, rank, size
        self._round = 0
        self._pairs: dict[tuple[int, ...], Pair] = {}
        self.seed = int(os.environ.get("TUTTI_TORCH_TEST_SEED", "1"))
        register_backend()

    def _open(self) -> None:
        if dist.is_initialized():
            return
        self._round += 1  # other keys: Gloo takes what it finds in the store for its own
        dist.init_process_group(BACKEND, store=dist.PrefixStore(f"round{self._round}", self._store), rank=self.rank,
                                world_size=self.size, timeout=TIMEOUT)

    def pair(self, *ranks: int) -> Pair:
        """The groups of these ranks, in ascending order; of all, if none is named. Every rank must ask for them."""
        self._open()
        members = ranks or tuple(range(self.size))
        if members not in self._pairs:
            gloo = dist.new_group(list(members), backend="gloo", timeout=TIMEOUT)
            tutti = (dist.group.WORLD if members == tuple(range(self.size)) else
                     dist.new_group(list(members), backend=BACKEND, timeout=TIMEOUT))
            rank = members.index(self.rank) if self.rank in members else -1
            assert tutti
            self._pairs[members] = Pair(list(members), rank, tutti, gloo)
        return self._pairs[members]

    def random(self, name: str) -> random.Random:
        """The same draws on all ranks. The seed is in the report of a test that fails."""
        print(f"TUTTI_TORCH_TEST_SEED={self.seed}")
        return random.Random(f"{self.seed}/{name}")

    def renew(self) -> None:
        """Drops the groups; the next test makes new ones."""
        self.close()

    def close(self) -> None:
        self._pairs.clear()
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except Exception as error:  # after a failed call anything may have happened; new groups are made anyway
                print(f"destroy_process_group: {error}")
        gc.collect()
