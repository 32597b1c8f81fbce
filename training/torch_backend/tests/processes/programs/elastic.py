"""Fails once, after a collective or before the group is made; torchrun starts all ranks anew, and then it goes well."""
import os
import signal
import sys

import torch
import torch.distributed as dist

from support.groups import register_backend
from support.launch import BACKEND

register_backend()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 0 and sys.argv[1] == "killed_before" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
dist.init_process_group(BACKEND)
x = torch.ones(100)
dist.all_reduce(x)
if attempt == 0:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        dist.all_reduce(x)
print(f"rank {dist.get_rank()}: attempt {attempt}, {x[0].item():.0f} ranks", flush=True)
dist.destroy_process_group()
