"""The PyTorch adapter. Importing it, and making a `TorchBackend`, must not import torch: a build does."""

from blocklaws.backends.on_torch.backend import CompiledTorchBackend, TorchBackend

__all__ = ["CompiledTorchBackend", "TorchBackend"]
