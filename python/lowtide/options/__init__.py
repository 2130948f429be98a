"""Options of optimizers, of parameter groups and of single parameters."""

# The values of `master=` besides None. They are here because `lowtide plan` imports no torch.
MASTERS = ("auto", "residual16", "residual8", "stochastic")
