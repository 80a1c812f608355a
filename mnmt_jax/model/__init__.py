"""The network: sublayers, layers, decoding caches, LoRA, parameter selection and FLOP counts."""
