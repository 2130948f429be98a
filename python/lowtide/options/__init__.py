"""Options of optimizers, of parameter groups and of single parameters."""
