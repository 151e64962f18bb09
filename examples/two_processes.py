"""Train a sparse classifier in two processes that share their gradients (DistributedDataParallel).

``torchrun`` starts the processes on several machines. The task: which of two letters comes more often in a sequence?
Expected output, in about twenty seconds:

    sparsity 0.0   accuracy 1.000   24,576 weights
    sparsity 0.9   accuracy 1.000    2,458 weights
"""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from selfish_rnn import Sparsifier, pack


class Classifier(nn.Module):
    """Read letters with an LSTM and answer after the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 32)
        self.rnn = nn.LSTM(32, 64, batch_first=True)
        self.decoder = nn.Linear(64, 2)

    def forward(self, letters: Tensor) -> Tensor:
        scores: Tensor = self.decoder(self.rnn(self.embedding(letters))[0][:, -1])
        return scores


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences of 21 letters, and which of the first two letters is more frequent."""
    letters = torch.randint(0, 8, (size, 21), generator=generator)
    return letters, ((letters == 0).sum(1) > (letters == 1).sum(1)).long()


def train(rank: int, sparsity: float, epochs: int, steps: int) -> None:
    """Train one classifier as one of the processes; the first process prints the result."""
    torch.manual_seed(0)  # the same model in every process
    generator = torch.Generator().manual_seed(rank)  # and other data
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=sparsity, prune_rate=0.3, rewirings=epochs)
    model = pack(model)
    parallel = DistributedDataParallel(model)
    sparsifier.register_ddp(parallel)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01)
    for _ in range(epochs):
        for _ in range(steps):
            letters, labels = batch(32, generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(parallel(letters), labels).backward()
            nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
            optimizer.step()
        sparsifier.rewire()  # all processes together; an error if their topologies differ
    if rank == 0:
        letters, labels = batch(2000, torch.Generator().manual_seed(2))
        accuracy = (model(letters).argmax(1) == labels).float().mean().item()
        print(f"sparsity {sparsity:3}   accuracy {accuracy:.3f}   {sparsifier.active_weights:6,d} weights", flush=True)


def work(rank: int, store: str, epochs: int, steps: int) -> None:
    """Join the process group, and train a dense and a sparse classifier."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    for sparsity in (0.0, 0.9):
        train(rank, sparsity, epochs, steps)
    distributed.destroy_process_group()


def main(epochs: int = 10, steps: int = 100) -> None:
    """Start two processes."""
    with TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder) / "store"), epochs, steps), nprocs=2)


if __name__ == "__main__":
    main()
