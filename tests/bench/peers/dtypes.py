"""The dtypes of weights that `run` measures; operands.py makes them."""

DTYPES = ("bf16", "f32", "i8", "mxfp4", "nvfp4", "int4-32", "int8-32")
# Block types of GGUF files. Both sides read the same blocks, each with its own decoding and packing.
GGUF_TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs")
