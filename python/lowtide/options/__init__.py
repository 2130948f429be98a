"""Options of optimizers, of parameter groups and of single parameters."""

# The words for `master=`, beside None. They stand here because `lowtide plan` imports no torch.
MASTERS = ("auto", "residual16", "residual8", "stochastic")
