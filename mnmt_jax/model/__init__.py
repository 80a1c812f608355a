"""The network: sublayers, blocks, keys and values, LoRA, which parameters train, FLOPs."""
