"""The weights of both sides: elements of a dtype, or codes of 4 or 8 bits with scales along K."""

import torch


class Plain:
    """Weights [G, n, k] in the dtype of the rows."""

    coded, sums = False, torch.float32

    def __init__(self, rows):
        self.rows = rows

    def parts(self, groups, n, k):
        return [(groups * n * k, self.rows)]

    def bytes(self, groups, n, k):
        return groups * n * k * self.rows.itemsize

    def fill(self, tensors, groups, n, k):
        for group in tensors[0].view(groups, n, k):
            group.copy_(torch.randn(n, k) / k ** 0.5)

    def draw_rows(self, rows):
        rows.copy_(torch.randn(len(rows)))


class Bytes(Plain):
    """int8 by int8 to int32, without scales."""

    sums = torch.int32

    def __init__(self):
        super().__init__(torch.int8)

    def fill(self, tensors, groups, n, k):
        tensors[0].random_(-127, 128)

    def draw_rows(self, rows):
        rows.random_(-127, 128)


class Coded(Plain):
    """Codes [G, n, k] of all values, two 4-bit codes in a byte, the first in the low nibble; scales [G, n, k / scale_k]."""

    coded = True

    def __init__(self, bits, scale_k, scale, draw):
        super().__init__(torch.bfloat16)
        self.bits, self.scale_k, self.scale, self.draw = bits, scale_k, scale, draw

    def parts(self, groups, n, k):
        return [(groups * n * k * self.bits // 8, torch.uint8), (groups * n * k // self.scale_k, self.scale)]

    def bytes(self, groups, n, k):
        return sum(count * dtype.itemsize for count, dtype in self.parts(groups, n, k))

    def fill(self, tensors, groups, n, k):
        codes, scales = tensors
        codes.random_(0, 256)
        scales.copy_(self.draw(len(scales)))


class Blocks(Plain):
    """A block type of GGUF: [G, n, k / block] blocks as ggml stores them. All bytes are random but the f16 scales, whose offsets in a block
    are given: those are small."""

    coded = True

    def __init__(self, block, block_bytes, *halves):
        super().__init__(torch.bfloat16)
        self.block, self.block_bytes, self.halves = block, block_bytes, halves

    def parts(self, groups, n, k):
        return [(groups * n * k // self.block * self.block_bytes, torch.uint8)]

    def bytes(self, groups, n, k):
        return self.parts(groups, n, k)[0][0]

    def fill(self, tensors, groups, n, k):
        blocks = tensors[0].random_(0, 256).view(-1, self.block_bytes)
        for at in self.halves:
            blocks[:, at:at + 2] = f16(len(blocks)).view(torch.uint8).view(-1, 2)


def e8m0(count):
    return torch.randint(118, 122, (count,), dtype=torch.uint8)  # 2^-9 to 2^-6


def e4m3(count):
    return torch.randint(0x08, 0x28, (count,), dtype=torch.uint8)  # normal and positive, 2^-6 to 2^-2


def f16(count):
    return torch.rand(count).mul_(0.01).add_(0.001).half()


WEIGHTS = {
    "bf16": Plain(torch.bfloat16),
    "f32": Plain(torch.float32),
    "i8": Bytes(),
    "mxfp4": Coded(4, 32, torch.uint8, e8m0),
    "nvfp4": Coded(4, 16, torch.uint8, e4m3),
    "int4-32": Coded(4, 32, torch.float16, f16),
    "int8-32": Coded(8, 32, torch.float16, f16),
    "q4_0": Blocks(32, 18, 0),
    "q4_1": Blocks(32, 20, 0, 2),
    "q5_0": Blocks(32, 22, 0),
    "q5_1": Blocks(32, 24, 0, 2),
    "q8_0": Blocks(32, 34, 0),
    "q2_k": Blocks(256, 84, 80, 82),
    "q3_k": Blocks(256, 110, 108),
    "q4_k": Blocks(256, 144, 0, 2),
    "q5_k": Blocks(256, 176, 0, 2),
    "q6_k": Blocks(256, 210, 208),
    "iq4_nl": Blocks(32, 18, 0),
    "iq4_xs": Blocks(256, 136, 0),
}
