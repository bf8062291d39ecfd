"""The products that are measured from Python, by peers/run and builds/run."""

# name: k, n, the rows of each group that has rows; the same shapes as in `expertd-bench kernels --list`, without empty groups
SHAPES = {
    "a512": (4096, 14336, [64] * 8),
    "b2048": (2048, 768, None),
    "c1": (2048, 768, [1] * 8),
    "c8": (2048, 768, None),
    "cmix": (4096, 14336, [1] * 2),
    "d64": (7168, 2048, [4] * 16),
    "tiny": (64, 128, [3, 1, 2]),
}
TOKENS = {"b2048": 256, "c8": 8}  # tokens, each with 8 of 128 experts, drawn with a fixed seed
ROTATE_BYTES = 1200000000  # the size of the pool of weights, larger than any cache
