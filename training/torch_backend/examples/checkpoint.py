"""Saves a sharded training with torch.distributed.checkpoint and goes on from what was saved, to the same losses.

  torchrun --nproc-per-node 2 checkpoint.py [FOLDER]
"""
import contextlib
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import tutti_torch  # noqa: F401
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH = 16


class Training:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, number: int) -> float:
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * number + dist.get_rank()))
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), x.flip(-1))
        loss.backward()
        self.optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        return mean.item()

    def state(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, folder: str) -> None:
        state = self.state()
        checkpoint.load(state, checkpoint_id=folder)  # into the tensors that are there
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main() -> None:
    dist.init_process_group("tutti")
    with contextlib.ExitStack() as at_the_end:
        given = sys.argv[1] if len(sys.argv) > 1 else None
        folders = [given]
        if given is None and dist.get_rank() == 0:
            folders = [at_the_end.enter_context(tempfile.TemporaryDirectory())]
        dist.broadcast_object_list(folders, src=0)
        folder = folders[0]

        training = Training(seed=0)
        for number in range(5):
            training.step(number)
        checkpoint.save(training.state(), checkpoint_id=folder)
        expected = [training.step(number) for number in range(5, 10)]

        resumed = Training(seed=1)  # another start, of which nothing is left after load()
        resumed.load(str(folder))
        losses = [resumed.step(number) for number in range(5, 10)]
        if dist.get_rank() == 0:
            for number, loss in enumerate(losses, 5):
                print(f"step {number}: loss {loss:.4f}")
            print("as without the interruption" if losses == expected else f"NOT the same: {expected}")
        dist.barrier()  # before rank 0 takes the folder away
    dist.destroy_process_group()
    if losses != expected:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
