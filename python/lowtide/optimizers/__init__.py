"""The torch.optim classes. Whichever module of this package is imported, all classes are: `registry.CLASSES` is whole for
who looks a rule up there and names no class, as the command line does."""

from lowtide.optimizers import adam, muon, rules  # noqa: F401
