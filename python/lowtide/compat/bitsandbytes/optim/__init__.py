"""`bitsandbytes.optim`: its classes by name. Each family is one rule here; 8bit, 32bit and Paged are options of it."""

from lowtide.compat.bitsandbytes.optim.adam import (
    Adam,
    Adam8bit,
    Adam32bit,
    AdamW,
    AdamW8bit,
    AdamW32bit,
    PagedAdam,
    PagedAdam8bit,
    PagedAdam32bit,
    PagedAdamW,
    PagedAdamW8bit,
    PagedAdamW32bit,
)
from lowtide.compat.bitsandbytes.optim.ademamix import (
    AdEMAMix,
    AdEMAMix8bit,
    AdEMAMix32bit,
    PagedAdEMAMix,
    PagedAdEMAMix8bit,
    PagedAdEMAMix32bit,
)
from lowtide.compat.bitsandbytes.optim.lion import Lion, Lion8bit, Lion32bit, PagedLion, PagedLion8bit, PagedLion32bit
from lowtide.compat.bitsandbytes.optim.manager import GlobalOptimManager
from lowtide.compat.bitsandbytes.optim.norms import LAMB, LARS, LAMB8bit, LAMB32bit, LARS8bit, LARS32bit, PytorchLARS
from lowtide.compat.bitsandbytes.optim.one_state import (
    SGD,
    Adagrad,
    Adagrad8bit,
    Adagrad32bit,
    RMSprop,
    RMSprop8bit,
    RMSprop32bit,
    SGD8bit,
    SGD32bit,
)

__all__ = [
    "LAMB", "LARS", "SGD", "AdEMAMix", "AdEMAMix8bit", "AdEMAMix32bit", "Adagrad", "Adagrad8bit", "Adagrad32bit",
    "Adam", "Adam8bit", "Adam32bit", "AdamW", "AdamW8bit", "AdamW32bit", "GlobalOptimManager", "LAMB8bit", "LAMB32bit",
    "LARS8bit", "LARS32bit", "Lion", "Lion8bit", "Lion32bit", "PagedAdEMAMix", "PagedAdEMAMix8bit",
    "PagedAdEMAMix32bit", "PagedAdam", "PagedAdam8bit", "PagedAdam32bit", "PagedAdamW", "PagedAdamW8bit",
    "PagedAdamW32bit", "PagedLion", "PagedLion8bit", "PagedLion32bit", "PytorchLARS", "RMSprop", "RMSprop8bit",
    "RMSprop32bit", "SGD8bit", "SGD32bit",
]  # fmt: skip
