"""The torch.optim classes."""
