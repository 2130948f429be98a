"""The ranks' jobs in the tests of Lightning's FSDP strategy. The Trainer refuses `FSDPStrategy` itself for processes on CPUs,
and the strategy would wrap for a GPU: a subclass that changes nothing is not refused, and the module wraps itself."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import lowtide
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from pytorch_lightning.strategies import FSDPStrategy
from support import bits
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

CLASSES = {"torch": torch.optim.AdamW, "fp32": lowtide.AdamW, "dynamic8": lowtide.AdamW}
EPOCHS, BATCHES = 3, 2


class OnCpus(FSDPStrategy):
    pass


class Module(pl.LightningModule):  # type: ignore[misc]
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
    """Losses, and weights and state of this rank: of all epochs, or of those after the first checkpoint. kind: of
    checkpoint, "full" or "sharded". All ranks have the same data."""
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
