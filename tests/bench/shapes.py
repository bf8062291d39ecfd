"""The products and layers that are measured in Python: beside other people's libraries, and build beside build."""

# name: k, n, rows of each group that has any; as `expertd-bench kernels --list`, without the groups that have none
SHAPES = {
    "a512": (4096, 14336, [64] * 8),
    "b2048": (2048, 768, None),
    "c1": (2048, 768, [1] * 8),
    "c8": (2048, 768, None),
    "cmix": (4096, 14336, [1] * 2),
    "d64": (7168, 2048, [4] * 16),
    "tiny": (64, 128, [3, 1, 2]),
}
TOKENS = {"b2048": 256, "c8": 8}  # x 8 choices of 128 experts, drawn by a fixed seed
ROTATE_BYTES = 1200000000  # of weights that a shape goes through, so that none is left in a cache
