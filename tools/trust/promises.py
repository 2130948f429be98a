"""The promises of TRUST.md, in their order."""

from __future__ import annotations

from trust.steps import STEPS
from trust.storage import STORAGE

PROMISES = sorted((*STORAGE, *STEPS), key=lambda row: int(row.number.removeprefix("T")))
