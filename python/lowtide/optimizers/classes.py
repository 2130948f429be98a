"""The list of rules and their classes, from every module of this package."""

from lowtide.optimizers import adam, muon, prodigy, rules, schedule_free  # noqa: F401
from lowtide.optimizers.registry import CLASSES as CLASSES
