"""Lightning's FSDP strategy on two CPU ranks: its own setup of optimizers, steps, checkpoints and loading. The Trainer refuses
`FSDPStrategy` itself for CPU processes, and the strategy would wrap for a GPU, so the test uses an unchanged subclass, and the
module wraps itself."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from distributed_support import differing, shared_ranks, size
from support import bits
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

pl = pytest.importorskip("pytorch_lightning")
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from pytorch_lightning.strategies import FSDPStrategy

CLASSES = {"torch": torch.optim.AdamW, "fp32": lowtide.AdamW, "dynamic8": lowtide.AdamW}
EPOCHS, BATCHES, WORLD = 3, 2, 2


class OnCpus(FSDPStrategy):
    pass


class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, which: str) -> None:
        super().__init__()
        self.which, self.losses = which, []  # type: ignore[var-annotated]
        torch.manual_seed(0)
        self.net: Any = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 33))

    def configure_model(self) -> None:
        if not isinstance(self.net, FSDP):
            here = torch.device("cpu")
            self.net[0] = FSDP(self.net[0], use_orig_params=True, device_id=here)
            self.net = FSDP(self.net, use_orig_params=True, device_id=here)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        options = {} if self.which == "torch" else {"state": self.which}
        optimizer = CLASSES[self.which](self.parameters(), lr=0.01, weight_decay=0.1, **options)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}


def train(which: str, kind: str, folder: str, resume: bool) -> tuple[list[float], dict[str, bytes]]:
    """Losses, weights and state of this rank, for all epochs or those after the first checkpoint. kind: of checkpoint, "full"
    or "sharded". All ranks have the same data."""
    warnings.filterwarnings("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])
    random = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(16, 64, generator=random), torch.randn(16, 33, generator=random))
    loader = torch.utils.data.DataLoader(data, batch_size=16 // BATCHES)
    save = pl.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu", devices=torch.distributed.get_world_size(), max_epochs=EPOCHS, logger=False, callbacks=[save],
        strategy=OnCpus(cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo", state_dict_type=kind),
        use_distributed_sampler=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Module(which)
    trainer.fit(module, loader, ckpt_path=str(Path(folder) / "epoch=0.ckpt") if resume else None)
    (opt,) = trainer.optimizers
    found = {}
    for name, param in module.named_parameters():
        found[name] = bits(param)
        found |= {f"{name}.{key}": bits(value) for key, value in opt.state[param].items()}
    return module.losses, found


def test_sharded_checkpoints_resume_to_the_bit(tmp_path: Path, figure: Callable[[str], None]) -> None:
    what = WORLD, train, "dynamic8", "sharded", str(tmp_path)
    runs, again = (shared_ranks().run(*what, resume) for resume in (False, True))
    compared = 0
    for (losses, found), (resumed, after) in zip(runs, again, strict=True):
        assert resumed == losses[BATCHES :]
        assert differing(found, after) == []
        compared += size(found)
    losses = runs[0][0]
    assert losses[-1] < losses[0]
    figure(f"{compared} bytes of {WORLD} ranks, 0 differ after resuming; loss {losses[0]:.3f} -> {losses[-1]:.3f}")


def test_full_checkpoints_resume_as_torch_does(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """With torch's optimizer, too, Lightning goes on otherwise than without a checkpoint here; with Lowtide's, alike.

    A step rounds weights below 1 and their updates once more than torch's: of each, half a unit of 2^-24, in as many steps
    as there are losses; a loss has sums of 256 products of them."""
    worst = 0.0
    for resume in (False, True):
        ours, theirs = (
            shared_ranks().run(WORLD, train, which, "full", str(tmp_path / which), resume)[0][0]
            for which in ("fp32", "torch")
        )
        worst = max(worst, *(abs(a - b) / b for a, b in zip(ours, theirs, strict=True)))
    bound = 2 * EPOCHS * BATCHES * 256 * 2.0**-24
    figure(f"losses of both runs within {worst:.1e} of torch's, of {bound:.1e}")
    assert worst <= bound
