"""Where tensors are: kinds of devices, arrays and shards of DTensors."""
