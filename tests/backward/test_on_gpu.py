"""The backward pass on a GPU: the same bits in every run, and whole training steps in CUDA graphs.

Needs a Hopper GPU, and is skipped elsewhere.
"""

import pytest
import torch
from torch import Tensor, nn

import fa4
from fa4 import reference
from tests.asked import problem_of

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


@pytest.fixture(autouse=True)
def arch() -> None:
    """Nothing is emulated here."""


RUNS = 5
SHAPES = [  # batch, queries, keys, query heads, key/value heads, head dim
    (4, 2048, 2048, 16, 16, 128),
    (2, 4096, 4096, 32, 8, 64),
    (1, 8192, 8192, 8, 8, 128),
    (2, 2048, 2048, 8, 8, 256),
    (3, 1000, 3001, 6, 2, 96),
    (1, 3001, 1000, 4, 4, 128),
]
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (700, 100)},
    "left": {"window_size": (700, None)},
}


def draw(batch: int, queries: int, keys: int, heads: int, heads_kv: int, dim: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((queries, heads), (keys, heads_kv), (keys, heads_kv))
    return [torch.randn(batch, *shape, dim, device="cuda").bfloat16() for shape in shapes]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_same_bits_in_every_run(shape: tuple[int, ...], mask: str) -> None:
    inputs, options = draw(*shape), MASKS[mask]
    leaves = [t.requires_grad_() for t in inputs]
    out, lse = fa4.flash_attn_func(*leaves, return_lse=True, deterministic=True, **options)
    grads = torch.randn_like(out), torch.randn_like(lse)
    runs = [torch.autograd.grad((out, lse), leaves, grads, retain_graph=True) for _ in range(RUNS)]
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))
    plain = [t.detach() for t in inputs]
    agreement = reference.compare_gradients(problem_of(*plain, **options), plain, grads, runs[0])
    assert agreement.ok, agreement


class Block(nn.Module):
    """Attention and what surrounds it in a model, in bfloat16."""

    def __init__(self, deterministic: bool, width: int = 512) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.deterministic = deterministic
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, 128)).unbind(2)
        out = fa4.flash_attn_func(q, k, v, causal=True, deterministic=self.deterministic)
        return x + self.mix(out.flatten(2))


class Trainer:
    """A model, its optimizer, and one place each for the batch and for the loss."""

    def __init__(self, deterministic: bool) -> None:
        blocks = [Block(deterministic) for _ in range(2)]
        self.model = nn.Sequential(*blocks).to("cuda", torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, capturable=True)
        self.x = torch.zeros(2, 777, 512, device="cuda", dtype=torch.bfloat16)

    def step(self) -> Tensor:
        """Forward, loss, backward, update; all memory of a step is allocated inside."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.model(self.x) - 1.0).float().square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def batches(count: int) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 777, 512, device="cuda").bfloat16() for _ in range(count)]


def losses_of_a_graph(trainer: Trainer, warm: list[Tensor], rest: list[Tensor]) -> list[Tensor]:
    """Some eager steps on another stream, as capture asks for, then replays of a captured one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        losses = []
        for batch in warm:
            trainer.x.copy_(batch)
            losses.append(trainer.step())
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    trainer.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = trainer.step()
    for batch in rest:
        trainer.x.copy_(batch)
        graph.replay()
        losses.append(loss.clone())
    return losses


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_training_step_in_a_graph_is_the_eager_step(deterministic: bool) -> None:
    eager, captured = Trainer(deterministic), Trainer(deterministic)
    data, expected = batches(8), []
    for batch in data:
        eager.x.copy_(batch)
        expected.append(eager.step())
    losses = losses_of_a_graph(captured, data[:3], data[3:])
    assert expected[-1] < expected[0]
    pairs = zip(captured.model.parameters(), eager.model.parameters(), strict=True)
    if deterministic:
        assert all(torch.equal(a, b) for a, b in zip(losses, expected, strict=True))
        assert all(torch.equal(a, b) for a, b in pairs)
    else:
        torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=1e-2, atol=0)


def test_a_step_that_inductor_compiles_is_the_eager_step() -> None:
    """Attention is an operator among kernels that Triton makes of the rest; those round less."""
    x = batches(1)[0].requires_grad_()
    block = Block(deterministic=True).to("cuda", torch.bfloat16)
    steps = []
    for call in (block, torch.compile(block, fullgraph=True)):
        loss = call(x).float().square().mean()
        steps.append((loss.detach(), *torch.autograd.grad(loss, (x, *block.parameters()))))
    for eager, compiled in zip(*steps, strict=True):
        assert (compiled - eager).norm() < 0.02 * eager.norm()
        assert eager.any()
