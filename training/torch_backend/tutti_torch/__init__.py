"""Tutti as a torch.distributed backend.

    import tutti_torch
    torch.distributed.init_process_group("tutti")
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tutti_torch import _C


def _create(options: Any, _backend_options: Any) -> dist.Backend:
    timeout = options.timeout if isinstance(options.timeout, timedelta) else timedelta(seconds=options.timeout)
    return _C.create_backend(options.store, options.group_rank, options.group_size, timeout)


if not hasattr(dist.Backend, "TUTTI"):
    dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu", "cuda"])
