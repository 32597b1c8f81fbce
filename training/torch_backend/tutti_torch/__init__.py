"""Tutti as a torch.distributed backend.

    import torch.distributed as dist
    import tutti_torch                    # registers the backend

    dist.init_process_group("tutti")      # or "cpu:tutti,cuda:tutti", "cpu:tutti,cuda:nccl"

Everything above torch.distributed works as with any other backend. What is here beside that: what ran and why
(explain), what was called last on all ranks (flight_recorder), and the end of a group from one rank (abort).
"""

import atexit
import multiprocessing.util
import os
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend  # dist.Backend is the name of one

try:
    from tutti_torch._built_for import BUILT_FOR_TORCH
except ModuleNotFoundError:
    raise ImportError(
        f"{os.path.dirname(__file__)} is tutti_torch's source, not the installed package, and comes before it on the "
        "path: run Python from another folder"
    ) from None

if torch.__version__ != BUILT_FOR_TORCH:
    raise ImportError(
        f"tutti_torch was built for torch {BUILT_FOR_TORCH}, and this is torch {torch.__version__}: "
        "build it again with this one (pip install --force-reinstall --no-deps ./training/torch_backend)"
    )

from tutti_torch import _C  # noqa: E402  (only loads with the torch that it was built for)

__all__ = ["Explanation", "abort", "explain", "flight_recorder", "info", "memory", "monitored_barrier"]
__version__: str = _C.version

_DEVICES = ["cpu", "cuda"] if _C.serves_cuda else ["cpu"]  # whose tensors are served here
_LAST_CHANCE = timedelta(seconds=1)  # for what is still under way when the process ends

_default_timeout = dist.default_pg_timeout  # the default group's, for groups that are given none
_prepared_pid = 0  # of the process whose end is prepared: a fork has an end of its own


class Explanation(NamedTuple):
    """How the last collective of a group ran."""

    algorithm: str
    lanes: int
    rounds: int
    reason: str


def info() -> dict[str, Any]:
    """What this is: versions, devices, and the bytes of registered memory (allocate_tensor, temporaries)."""
    live, waiting, peak = _C.registered_memory()
    return {
        "version": __version__,
        "tutti": _C.tutti_version,
        "torch": torch.__version__,
        "built_for_torch": BUILT_FOR_TORCH,
        "devices": list(_DEVICES),
        "registered_memory": {"live": live, "waiting": waiting, "peak": peak},
    }


def explain(group: dist.ProcessGroup | None = None) -> Explanation:
    """The algorithm of the group's last collective on this rank, and why it was chosen. Waits for it to end."""
    return Explanation(*_C.explain(_backend(group)))


def flight_recorder(group: dist.ProcessGroup | None = None, json: bool = False) -> str:
    """The last calls of this rank and of the peers whose memory is reachable, as a table or as JSON.

    From any thread, also while a call of the group hangs. Empty after the group was destroyed.
    """
    return _C.flight_recorder(_backend(group), json)


def memory(group: dist.ProcessGroup | None = None) -> dict[str, int]:
    """The bytes that this rank's part of the group takes.

    scratch: shared with the peers. plans: of calls made before, estimated. messages: kept for receives to come.
    """
    scratch, plans, messages = _C.memory(_backend(group))
    return {"scratch": scratch, "plans": plans, "messages": messages}


def abort(group: dist.ProcessGroup | None = None, reason: str = "tutti_torch.abort() was called") -> None:
    """Ends all pending and future calls of the group with an error that says why, on every rank. Returns at once."""
    _C.abort(_backend(group), reason)


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """A barrier that names the ranks which do not come: all of them, or the first one, to every rank that did.

    torch.distributed.monitored_barrier accepts Gloo's groups only. Slower than barrier(): it goes through the store.
    """
    limit = timedelta(milliseconds=-1) if timeout is None else timeout  # -1 ms: the group's
    _C.monitored_barrier(_backend(group), limit, wait_all_ranks)


def _backend(group: dist.ProcessGroup | None) -> Backend:
    """The Tutti backend of a group, out of the wrapper that TORCH_DISTRIBUTED_DEBUG=DETAIL puts around it."""
    group = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(group, dist.ProcessGroup):  # new_group() gives a number to the ranks that are not in it
        raise ValueError(f"the group is {group!r}; expected a group of which this rank is a member")
    for device in group._device_types:
        wrapped = group._get_backend(device)
        backend: Backend = getattr(wrapped, "wrapped_pg", wrapped)
        if _C.is_tutti(backend):
            return backend
    raise ValueError(f"group {group.group_name} has no device whose backend is tutti")


def _create(options: Any, _backend_options: Any) -> Backend:
    global _default_timeout
    _prepare_end()
    timeout = options.timeout
    if not dist.is_initialized():
        _default_timeout = timeout
    elif timeout == dist.default_pg_timeout:  # new_group() was given none
        timeout = _default_timeout
    return _C.create_backend(
        options.store,
        options.group_rank,
        options.group_size,
        timeout,
        options.group_id,
        options.global_ranks_in_group,
    )


def _prepare_end() -> None:
    """A process that ends leaves its groups, so that the peers do not take it for one that died."""
    global _prepared_pid
    if _prepared_pid == os.getpid():
        return
    _prepared_pid = os.getpid()
    atexit.register(_C.end_process, _LAST_CHANCE)
    # The children of multiprocessing end without atexit.
    multiprocessing.util.Finalize(None, _C.end_process, args=(_LAST_CHANCE,), exitpriority=100)


def _perform_nocolor_split(_backend: Backend, _device: torch.device) -> None:
    """new_group() asks it of the ranks that are not in the group, where the default group is bound to a device.

    Only NCCL's class has it in torch. A group of Tutti's needs nothing of other ranks.
    """


def _register() -> None:
    if not hasattr(Backend, "perform_nocolor_split"):
        setattr(Backend, "perform_nocolor_split", _perform_nocolor_split)  # noqa: B010  (mypy knows no such method)
    if not hasattr(dist.Backend, "TUTTI"):
        # Both devices: a group may be named for either, and a tensor on one that is not served is refused by name.
        dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu", "cuda"])


_register()
