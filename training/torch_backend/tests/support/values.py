"""Inputs that every rank can compute for every rank, and results that any order of reduction must give.

Sums and products are of small whole numbers, so they are exact in every type and equal to the bit.
"""
import functools
import math
import random
from collections.abc import Sequence

import torch
import torch.distributed as dist

from support.launch import DEVICE

Op = dist.ReduceOp
Shape = tuple[int, ...]

UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
MOVED_ONLY = [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
DTYPES = [torch.bool, *UNSIGNED, *SIGNED, *FLOATS, *COMPLEX, *FP8, *MOVED_ONLY]

ARITHMETIC = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]
BITWISE = [Op.BAND, Op.BOR, Op.BXOR]

# What Gloo takes; the rest is checked by the formula alone.
GLOO_DTYPES = {torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, *FLOATS, torch.complex64,
               torch.complex128}


def ops_of(dtype: torch.dtype) -> list[Op]:
    """The operations that a type has."""
    if dtype is torch.bool:
        return [*ARITHMETIC, *BITWISE]
    if dtype in COMPLEX:
        return [Op.SUM, Op.AVG]
    if dtype in MOVED_ONLY:
        return []
    return [*ARITHMETIC, Op.AVG] if dtype.is_floating_point else [*ARITHMETIC, Op.AVG, *BITWISE]


def gloo_takes(dtype: torch.dtype, op: Op | None = None) -> bool:
    whole = not (dtype.is_floating_point or dtype.is_complex)
    return dtype in GLOO_DTYPES and not (dtype is torch.bool and op == Op.BXOR) and not (whole and op == Op.AVG)


def make(seed: object, rank: int, shape: Shape, dtype: torch.dtype, op: Op | None = None) -> torch.Tensor:
    """The input of a rank. With an op, values for which its result is exact."""
    draw = torch.Generator().manual_seed(random.Random(f"{seed}/{rank}").randrange(1 << 31))
    unsigned = dtype in UNSIGNED or dtype is torch.bool

    def whole(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high + 1, shape, generator=draw)

    if dtype is torch.bool:
        return whole(0, 1).to(torch.bool)
    if dtype in MOVED_ONLY or (dtype in FP8 and op is None):
        return whole(0, 119).to(torch.uint8).view(dtype)  # no NaN among these bits
    if op == Op.PRODUCT:
        return (whole(1, 2) if unsigned else whole(1, 2) * (2 * whole(0, 1) - 1)).to(dtype)
    if op in BITWISE:
        return whole(0, 127).to(dtype)
    most = 2 if dtype in FP8 else 15  # e5m2 has three bits: whole numbers to 8, so sums of four ranks
    low, high = (0, most) if unsigned else (-most, most)
    if dtype in COMPLEX:
        return torch.complex(whole(low, high).double(), whole(low, high).double()).to(dtype)
    return whole(low, high).to(dtype)


def reduced(inputs: Sequence[torch.Tensor], op: Op) -> torch.Tensor:
    """What the operation makes of all ranks' inputs. AVG of whole numbers cuts off what is behind the point."""
    dtype = inputs[0].dtype
    if dtype is torch.bool:
        wide = [x.to(torch.int64) for x in inputs]
        both = {str(Op.SUM): Op.BOR, str(Op.MAX): Op.BOR, str(Op.PRODUCT): Op.BAND, str(Op.MIN): Op.BAND}
        return reduced(wide, both.get(str(op), op)).to(torch.bool)
    # Exact in 64 bits, and then as the type has it.
    wide_type = dtype if dtype.is_complex or dtype.is_floating_point else torch.int64
    if dtype.is_floating_point and dtype.itemsize < 4:
        wide_type = torch.float32
    if dtype is torch.complex32:
        wide_type = torch.complex64
    wide = [x.to(wide_type) for x in inputs]
    verbs = {str(Op.SUM): torch.add, str(Op.AVG): torch.add, str(Op.PRODUCT): torch.mul, str(Op.MIN): torch.minimum,
             str(Op.MAX): torch.maximum, str(Op.BAND): torch.bitwise_and, str(Op.BOR): torch.bitwise_or,
             str(Op.BXOR): torch.bitwise_xor}
    total = functools.reduce(verbs[str(op)], wide)
    if op == Op.AVG:
        whole = not (dtype.is_floating_point or dtype.is_complex)
        total = torch.div(total, len(inputs), rounding_mode="trunc" if whole else None)
    return total.to(dtype)


LAYOUTS = ["contiguous", "transposed", "strided", "offset"]


def lay(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values on the device under test, in memory as they may lie in a user's program."""
    x = x.to(DEVICE)
    if layout == "transposed" and x.dim() >= 2:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and x.dim() >= 1:
        holder = torch.zeros(*x.shape[:-1], max(1, 2 * x.shape[-1]), dtype=x.dtype, device=DEVICE)
        view = holder[..., ::2][..., :x.shape[-1]]
        return view.copy_(x)
    if layout == "offset":  # contiguous, and not aligned
        holder = torch.zeros(x.numel() + 1, dtype=x.dtype, device=DEVICE)
        return holder[1:].view(x.shape).copy_(x)
    return x.clone()


def bits(x: torch.Tensor) -> torch.Tensor:
    """The tensor as bytes, so that types without == can be compared too."""
    x = x.clone(memory_format=torch.contiguous_format)  # with the strides of its shape, also where one size is 1
    return x.view(-1).view(torch.uint8) if x.numel() else x.new_empty(0, dtype=torch.uint8)


def same(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], *, exact: bool, what: str) -> None:
    """Fails unless all are equal: bits, or up to the rounding of one division."""
    assert len(got) == len(expected), what
    for index, (mine, wanted) in enumerate(zip((x.cpu() for x in got), (x.cpu() for x in expected))):
        assert mine.shape == wanted.shape and mine.dtype == wanted.dtype, f"{what}, tensor {index}: {mine} != {wanted}"
        if torch.equal(bits(mine), bits(wanted)):
            continue
        # AVG: the sum is exact; sum / n rounds once, sum * (1 / n) twice, each by half an epsilon of the result.
        wide = torch.complex128 if mine.is_complex() else torch.float64
        close = not exact and bool(((mine.to(wide) - wanted.to(wide)).abs() <= 1.5 * torch.finfo(mine.dtype).eps *
                                    wanted.to(wide).abs()).all())
        negative_zeros = (mine.is_floating_point() or mine.is_complex()) and torch.equal(mine.to(wide), wanted.to(wide))
        shown = f"got {mine.flatten()[:8]}, expected {wanted.flatten()[:8]}"
        assert close or negative_zeros, f"{what}, tensor {index}: {shown}"


def elements(shape: Shape) -> int:
    return math.prod(shape)
