"""The JAX backend: an independent implementation from the mathematics. Importing this package imports no JAX."""

from blocklaws.backends.on_jax.adapter import JaxBackend, clear_caches

__all__ = ["JaxBackend", "clear_caches"]
