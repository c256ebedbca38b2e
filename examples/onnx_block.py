"""A block that runs in ONNX Runtime: one graph, built node by node, with the keys and values so far as inputs.

``blocklaws verify examples/onnx_block.py:OnnxBackend`` checks it; it needs the packages ``onnx`` and ``onnxruntime``.
The graph serves `forward` and `forward_cached` alike: the first is a call without a past. The weights are inputs too,
so that a session is made once for each config and not once for each block.

B is the batch, T the number of tokens. Heads are [B, n_kv_heads, group, T, d_head]: the query heads of a group have an
axis of their own, beside the one key/value head that they share, so that broadcasting does what repeating would.
"""

import functools

import numpy as np

ATTENTION, FEED_FORWARD = ("query", "key", "value", "output"), ("gate", "up", "down")
WEIGHTS = {
    **dict.fromkeys(("attention_norm.gain", "feed_forward_norm.gain"), 1),
    **dict.fromkeys([f"attention.{name}" for name in ATTENTION] + [f"feed_forward.{name}" for name in FEED_FORWARD], 2),
}  # name -> number of axes


class OnnxBackend:
    """Says what the graph can compute, and builds it."""

    name = "onnx"
    dtypes = ("float32", "float64")
    packages = ("onnx", "onnxruntime")  # reports name their versions

    def supports(self, config):
        """Return None for a config that can be built, and otherwise a sentence that says why not."""
        if config.further:
            return f"it has no {', '.join(config.further)}"
        if (config.norm, config.placement, config.feed_forward, config.bias) != ("rms", "pre", "swiglu", False):
            return "the graph has only pre-placed rms norms and swiglu without biases"
        return None

    def build(self, config, parameters, dtype):
        """Return a block; ``parameters`` has a NumPy array for each canonical name."""
        return OnnxBlock(config, session(config, dtype), {name: parameters[name] for name in WEIGHTS}, dtype)


class OnnxBlock:
    """A session, and the weights to give it."""

    def __init__(self, config, session, weights, dtype):
        self.config, self.session, self.weights, self.dtype = config, session, weights, dtype

    def forward(self, x, position_offset=0):
        """Return the output [B, T, d_model]."""
        return self.run(x, position_offset, self.no_past(x))[0]

    def forward_cached(self, x, cache):
        """Return the output of the next tokens, and the cache for the call after: all keys and values so far."""
        output, *past = self.run(x, 0, cache or self.no_past(x))
        return output, past

    def no_past(self, x):
        """Return the keys and the values of no token at all."""
        return [np.empty((len(x), self.config.n_kv_heads, 1, 0, self.config.d_head), self.dtype)] * 2

    def run(self, x, offset, past):
        """Return the output, and the keys and values of the past and of x; x comes after the past."""
        if x.shape[1] == 0 or offset < 0 or offset + past[0].shape[3] + x.shape[1] > self.config.max_positions:
            raise ValueError(f"no token, or a position that is not within 0 to {self.config.max_positions - 1}")
        given = {"x": np.ascontiguousarray(x), "offset": np.array(offset), "past_key": past[0], "past_value": past[1]}
        return self.session.run(None, {**given, **self.weights})


@functools.lru_cache(maxsize=64)
def session(config, dtype):
    """Return an inference session of the graph for a config."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # A block of a test is too small to share among threads.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model(config, dtype).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def model(config, dtype):
    """Return the ONNX model of a block, checked by ONNX's own checker."""
    import onnx

    graph, real = Graph(dtype), onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    output, key, value = compute(graph.add, graph.constant, config)
    inputs = {"x": 3, "past_key": 5, "past_value": 5, **WEIGHTS}
    info = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(
        graph.nodes,
        "block",
        [
            info("offset", onnx.TensorProto.INT64, []),
            *(info(name, real, [None] * axes) for name, axes in inputs.items()),
        ],
        [info(output, real, [None] * 3), info(key, real, [None] * 5), info(value, real, [None] * 5)],
        graph.constants,
    )
    made = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


class Graph:
    """Collects nodes and constants; each is named by its number."""

    def __init__(self, dtype):
        self.dtype, self.nodes, self.constants = dtype, [], []

    def add(self, kind, *inputs, outputs=1, **attributes):
        """Add a node; return the name of its output, or the names of its several."""
        import onnx

        names = [f"{kind}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(onnx.helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value, dtype=None):
        """Add a constant, in the block's dtype or another; return its name."""
        import onnx

        array = np.asarray(value, dtype or self.dtype)
        self.constants.append(onnx.numpy_helper.from_array(array, f"constant_{len(self.constants)}"))
        return self.constants[-1].name


def compute(add, constant, config):
    """Add the whole block; return the names of the output, of all keys and of all values."""
    first, last = constant(0, "int64"), constant([-1], "int64")
    past = add("Squeeze", add("Shape", "past_key", start=3, end=4))
    tokens = add("Squeeze", add("Shape", "x", start=1, end=2))

    def norm(x, gain):
        # Squares and their mean in float64: in float32 large features overflow and long rows lose digits.
        wide = add("Cast", x, to=11)
        mean_square = add("ReduceMean", add("Mul", wide, wide), last)
        root = add("Sqrt", add("Add", mean_square, constant(config.norm_eps, "float64")))
        return add("CastLike", add("Mul", add("Div", wide, root), add("Cast", gain, to=11)), "x")

    def heads(x, weight, group):
        shape = constant([0, 0, config.n_kv_heads, group, config.d_head], "int64")
        return add("Transpose", add("Reshape", add("MatMul", x, weight), shape), perm=[0, 2, 3, 1, 4])

    def positions(start, count):
        return add("Range", start, add("Add", start, count), constant(1, "int64"))

    def angles():
        # Radians [T, d_head / 2] (Su et al. 2021, equation 15) in float64: far positions in float32 are degrees off.
        exponents = -2 * np.arange(config.d_head // 2) / config.d_head
        at = add("Cast", positions(add("Add", "offset", past), tokens), to=11)
        return add("Mul", add("Unsqueeze", at, last), constant(config.rotary_base**exponents, "float64"))

    def rotate(x, cosine, sine):
        # A pair is (2i, 2i+1) or (i, i + d_head/2): once the features are split in two axes, one of them has the pairs.
        split, axis = ([-1, 2], 5) if config.rotary == "interleaved" else ([2, -1], 4)
        pairs = add("Reshape", x, constant([0, 0, 0, 0, *split], "int64"))
        a, b = add("Split", pairs, outputs=2, axis=axis, num_outputs=2)
        turned = add(
            "Concat",
            add("Sub", add("Mul", a, cosine), add("Mul", b, sine)),
            add("Add", add("Mul", a, sine), add("Mul", b, cosine)),
            axis=axis,
        )
        return add("Reshape", turned, constant([0, 0, 0, 0, config.d_head], "int64"))

    normed = norm("x", "attention_norm.gain")
    query = heads(normed, "attention.query", config.n_heads // config.n_kv_heads)
    key, value = heads(normed, "attention.key", 1), heads(normed, "attention.value", 1)
    if config.rotary is not None:
        pair_axis = constant([-1 if config.rotary == "interleaved" else -2], "int64")
        turn = angles()
        turns = [add("CastLike", add("Unsqueeze", add(kind, turn), pair_axis), "x") for kind in ("Cos", "Sin")]
        query, key = rotate(query, *turns), rotate(key, *turns)
    key = add("Concat", "past_key", key, axis=3)
    value = add("Concat", "past_value", value, axis=3)

    scores = add("MatMul", query, add("Transpose", key, perm=[0, 1, 2, 4, 3]))
    scores = add("Div", scores, constant(np.sqrt(config.d_head)))
    row = add("Unsqueeze", positions(past, tokens), last)
    column = positions(first, add("Add", past, tokens))
    scores = add("Where", add("LessOrEqual", column, row), scores, constant(-np.inf))
    mixed = add("MatMul", add("Softmax", scores, axis=-1), value)
    joined = add("Transpose", mixed, perm=[0, 3, 1, 2, 4])
    joined = add("Reshape", joined, constant([0, 0, config.n_heads * config.d_head], "int64"))
    x = add("Add", "x", add("MatMul", joined, "attention.output"))

    normed = norm(x, "feed_forward_norm.gain")
    gate, up = add("MatMul", normed, "feed_forward.gate"), add("MatMul", normed, "feed_forward.up")
    hidden = add("Mul", add("Mul", gate, add("Sigmoid", gate)), up)
    return add("Add", x, add("MatMul", hidden, "feed_forward.down")), key, value
