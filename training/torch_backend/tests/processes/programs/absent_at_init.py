"""init_process_group of a world of which not all ranks come: ends with an error within its timeout."""
import time
from datetime import timedelta

import torch.distributed as dist

from support.groups import register_backend
from support.launch import BACKEND

register_backend()
begin = time.monotonic()
try:
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=3))
except Exception as error:
    print(f"told after {time.monotonic() - begin:.1f} s: {type(error).__name__}: {error}", flush=True)
