"""The optimizers that are compared: six of bitsandbytes' classes as Lowtide has them, and the same from Lowtide itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

APIS = {"compat": "lowtide.compat.bitsandbytes", "native": "lowtide"}
CLASSES = ("AdamW", "AdamW8bit", "PagedAdamW", "PagedAdamW8bit", "Lion", "PagedLion")


@dataclass(frozen=True)
class Variant:
    api: str  # of APIS
    name: str  # of CLASSES

    @property
    def id(self) -> str:
        return f"{self.api}.{self.name}"

    @property
    def paged(self) -> bool:
        return self.name.startswith("Paged")

    @property
    def unpaged(self) -> Variant:
        return Variant(self.api, self.name.removeprefix("Paged"))

    @property
    def eight_bit(self) -> bool:
        return self.name.endswith("8bit")

    def make(self, params: list[Any], lr: float, memory: Any) -> Any:
        """The optimizer; memory: its budget, if it is paged."""
        import lowtide
        from lowtide.compat import bitsandbytes

        options = {"memory": memory} if self.paged else {}
        if self.api == "compat":
            return getattr(bitsandbytes.optim, self.name)(params, lr=lr, **options)
        rule = getattr(lowtide, self.unpaged.name.removesuffix("8bit"))
        return rule(params, lr=lr, state="dynamic8" if self.eight_bit else "fp32", **options)


VARIANTS = tuple(Variant(api, name) for api in APIS for name in CLASSES)
