"""The measured layers: hidden size, intermediate size, experts, top-k, tokens."""

LAYERS = {
    "qwen3": (2048, 768, 128, 8, (1, 8, 32, 256, 2048)),
    "mixtral": (4096, 14336, 8, 2, (1, 1024)),
    "tiny": (128, 64, 8, 2, (1, 16)),
}
