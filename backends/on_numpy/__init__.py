"""The float64 reference in NumPy, written from the mathematics of the design and from no other library."""

from blocklaws.backends.on_numpy.backend import NumpyBackend as NumpyBackend
