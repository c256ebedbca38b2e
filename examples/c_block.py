"""A kernel in C, verified through ctypes: `c_block.c`, compiled by the system's compiler when it is first needed.

``blocklaws verify examples/c_block.py:CBackend`` checks it, in float64 and in float32. A pointer carries no shape, so
what a kernel would read past the end of is refused here, by the words that blocklaws asks for (``validates``).

B is the batch, T the number of tokens; keys and values are [B, n_kv_heads, T, d_head].
"""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_suffix(".c")
#: The parameters in the order of the struct `Weights`.
WEIGHTS = (
    "attention_norm.gain", "attention.query", "attention.key", "attention.value", "attention.output",
    "feed_forward_norm.gain", "feed_forward.gate", "feed_forward.up", "feed_forward.down",
)  # fmt: skip
ROTARY = {None: 0, "interleaved": 1, "half": 2}


class Config(ctypes.Structure):
    """The struct `Config` of the kernel."""

    _fields_ = [(name, ctypes.c_int64) for name in ("d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "rotary")] + [
        (name, ctypes.c_double) for name in ("rotary_base", "norm_eps")
    ]


def compiler():
    """Return the C compiler: what CC names, or cc."""
    return shutil.which(os.environ.get("CC", "cc"))


@functools.cache
def kernel(real):
    """Compile the kernel for ``real`` (float or double) and return its function."""
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "block.so")
        # No contraction to fused operations: a row would depend on how the compiler unrolled the loop around it.
        options = ["-std=c99", "-O2", "-ffp-contract=off", "-Wall", "-Werror", "-fPIC", "-shared", f"-DREAL={real}"]
        command = [compiler(), *options, str(SOURCE), "-o", library, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{SOURCE.name} does not compile: {done.stderr.strip()}")
        # Once it is loaded the file may go.
        function = ctypes.CDLL(library).block_forward
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 4 + [ctypes.c_void_p] * 3
    return function


class CBackend:
    """Says what the kernel can compute, and builds it."""

    name = "c"
    dtypes = ("float64", "float32")
    validates = True

    def supports(self, config):
        """Return None for a config that can be built, and otherwise a sentence that says why not."""
        if compiler() is None:
            return f"there is no C compiler {os.environ.get('CC', 'cc')!r} here; install one, or name one in CC"
        if config.further:
            return f"it has no {', '.join(config.further)}"
        if (config.norm, config.placement, config.feed_forward, config.bias) != ("rms", "pre", "swiglu", False):
            return "the kernel has only pre-placed rms norms and swiglu without biases"
        return None

    def build(self, config, parameters, dtype):
        """Return a block; ``parameters`` has a NumPy array for each canonical name."""
        return CBlock(config, parameters, dtype)


class CBlock:
    """The weights as the kernel reads them, and the checks that it leaves to us."""

    def __init__(self, config, parameters, dtype):
        self.config, self.dtype = config, np.dtype(dtype)
        self.call = kernel({"float64": "double", "float32": "float"}[dtype])
        sizes = {name: getattr(config, name) for name, _ in Config._fields_ if name != "rotary"}
        self.sizes = Config(rotary=ROTARY[config.rotary], **sizes)
        if set(parameters) != set(WEIGHTS):
            wrong = ", ".join(sorted(set(parameters) ^ set(WEIGHTS)))
            raise ValueError(f"configuration: missing or unknown parameters: {wrong}")
        # Kept for as long as the block: the kernel has nothing but their addresses.
        self.weights = [np.ascontiguousarray(parameters[name], self.dtype) for name in WEIGHTS]
        for name, weight, shape in zip(WEIGHTS, self.weights, self.shapes(), strict=True):
            if weight.shape != shape:
                raise ValueError(f"component width: {name} has shape {weight.shape}, not {shape}")
        self.addresses = (ctypes.c_void_p * len(WEIGHTS))(*(weight.ctypes.data for weight in self.weights))

    def shapes(self):
        """Return the shapes that the kernel takes the weights to have."""
        c = self.config
        queries, keys = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
        attention = [(c.d_model,), (c.d_model, queries), (c.d_model, keys), (c.d_model, keys), (queries, c.d_model)]
        return [*attention, (c.d_model,), (c.d_model, c.d_ff), (c.d_model, c.d_ff), (c.d_ff, c.d_model)]

    def forward(self, x, position_offset=0):
        """Return the output [B, T, d_model]."""
        return self.run(x, position_offset, self.no_keys(x), self.no_keys(x))[0]

    def forward_cached(self, x, cache):
        """Return the output of the next tokens, and the cache for the call after; a cache is good for one call."""
        cache = cache or Cache(self.no_keys(x), self.no_keys(x))
        if cache.released:
            raise ValueError("released cache: each cache continues once; keep the one that the last call returned")
        output, key, value = self.run(x, 0, cache.key, cache.value)
        cache.released = True
        return output, Cache(key, value)

    def no_keys(self, x):
        """Return the keys (or values) of no token at all."""
        return np.empty((len(x), self.config.n_kv_heads, 0, self.config.d_head), self.dtype)

    def run(self, x, offset, key, value):
        """Call the kernel after every check; return the output, and all keys and values."""
        past = key.shape[2]
        self.refuse(x, offset + past)
        if len(key) != len(x):
            raise ValueError(f"the cache has {len(key)} sequences, and the input {len(x)}")
        x = np.ascontiguousarray(x, self.dtype)
        batch, tokens, _ = x.shape
        grown = [np.concatenate([kept, np.empty_like(kept, shape=(*kept.shape[:2], tokens, kept.shape[3]))], axis=2)
                 for kept in (key, value)]  # fmt: skip
        output = np.empty_like(x)
        arrays = [array.ctypes.data for array in (*grown, output)]
        if self.call(ctypes.byref(self.sizes), self.addresses, x.ctypes.data, batch, tokens, past, offset, *arrays):
            raise MemoryError("the kernel has found no memory for one row")
        return output, *grown

    def refuse(self, x, first):
        """Raise for what the kernel would take for numbers: it reads as far as it is told."""
        if x.ndim != 3:
            raise ValueError(f"input rank: {x.ndim} axes, not [B, T, d_model]")
        if x.shape[2] != self.config.d_model:
            raise ValueError(f"input width: {x.shape[2]} features, not d_model={self.config.d_model}")
        if x.shape[1] == 0:
            raise ValueError("empty tokens: there is no output row of no token")
        last = first + x.shape[1] - 1
        if first < 0 or last >= self.config.max_positions:
            raise ValueError(f"position range: {first} to {last} is not within 0 to {self.config.max_positions - 1}")


class Cache:
    """The keys and values so far, and whether a call has gone on from them."""

    def __init__(self, key, value):
        self.key, self.value, self.released = key, value, False
