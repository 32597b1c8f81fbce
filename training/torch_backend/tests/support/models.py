"""Small models and trainings whose losses over one backend are compared with those over another."""
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support.groups import Pair, World

STEPS = 5
WIDTH = 16
VOCABULARY = 32
CONTEXT = 8


class Mlp(nn.Module):
    """Layers of several sizes, so that there are several buckets; and one that the loss may leave out."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 3 * WIDTH, dtype=dtype)
        self.norm = nn.LayerNorm(3 * WIDTH, dtype=dtype)
        self.second = nn.Linear(3 * WIDTH, 5, dtype=dtype)
        self.third = nn.Linear(5, 4, dtype=dtype)
        self.spare = nn.Linear(5, 4, dtype=dtype)

    def forward(self, x: torch.Tensor, spare: bool = False) -> torch.Tensor:
        y = F.gelu(self.second(self.norm(torch.tanh(self.first(x)))))
        return self.spare(y) if spare else self.third(y)


class MlpWithoutSpare(Mlp):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        del self.spare

    def forward(self, x: torch.Tensor, spare: bool = False) -> torch.Tensor:
        return super().forward(x)


class Block(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.up = nn.Linear(width, 4 * width, dtype=dtype)
        self.down = nn.Linear(4 * width, width, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """An embedding, blocks, a head: the outline of a language model."""

    def __init__(self, layers: int = 2, dtype: torch.dtype = torch.float32, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, dtype=dtype)
        self.blocks = nn.ModuleList(Block(width, dtype) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False, dtype=dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made(make: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    """A model with the same parameters on every rank and each time."""
    torch.manual_seed(seed)
    return make()


def rows(rank: int, step: int, count: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(count, *shape, generator=draw, dtype=torch.float64).to(dtype)


def tokens(rank: int, step: int, count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    both = torch.randint(0, VOCABULARY, (count, CONTEXT + 1), generator=draw)
    return both[:, :-1], both[:, 1:]


def token_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    device = next(model.parameters()).device
    inputs, targets = (x.to(device) for x in tokens(rank, step))
    return F.cross_entropy(model(inputs).float().view(-1, VOCABULARY), targets.reshape(-1))


def float_type(pair: Pair) -> torch.dtype:
    """With two ranks a sum has one order, so any type gives Gloo's bits; with more, f64 leaves room for a bound."""
    return torch.float32 if pair.size == 2 else torch.float64


def agree(pair: Pair, mine: Iterable[float], theirs: Iterable[float], *, exact: bool = False) -> None:
    """Losses over both backends: bits with two ranks (or if nothing is added), else up to the order of additions.

    The bound: a gradient is a sum over n ranks, which two orders of addition give to (n - 1) epsilons of f64, 7e-16 for
    4 ranks; five steps of these small models enlarge a relative error by far less than 1e4.
    """
    mine, theirs = list(mine), list(theirs)
    assert len(mine) == len(theirs) > 0
    if exact or pair.size == 2:
        assert mine == theirs
    else:
        assert mine == pytest.approx(theirs, rel=1e-11, abs=1e-12)


def two_ranks_only(world: World) -> Pair:
    pair = world.pair()
    if pair.size != 2:
        pytest.skip("compared to the bit, which takes sums of two")
    return pair
