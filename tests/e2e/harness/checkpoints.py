"""Reads and writes safetensors files as bytes. The safetensors library cannot be used: it refuses to write the invalid files of the tests."""

import json
import re
import shutil
import struct

import numpy as np

from .paths import GOLDENS
from .tensors import F8_VALUES, bf16_values

KINDS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I32": np.int32, "I64": np.int64, "U8": np.uint8,
         "F8_E4M3": np.uint8}


def read_header(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(length)), 8 + length


def read_safetensors(path):
    """({name: float32 or integer array}, metadata)."""
    header, start = read_header(path)
    metadata = header.pop("__metadata__", {})
    data = path.read_bytes()
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[start + begin:start + end], KINDS[entry["dtype"]])
        array = bf16_values(array) if entry["dtype"] == "BF16" else array
        array = array.astype(np.float32) if entry["dtype"] == "F16" else array
        array = F8_VALUES["F8_E4M3"][array].astype(np.float32) if entry["dtype"] == "F8_E4M3" else array
        tensors[name] = array.reshape(entry["shape"])
    return tensors, metadata


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def rewrite_header(path, change, keep_length=False):
    """Replaces the header by change(header) and keeps the data. change returns a dict, or raw bytes."""
    header, start = read_header(path)
    data = path.read_bytes()[start:]
    text = change(header)
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    length = start - 8 if keep_length else len(text)
    path.write_bytes(struct.pack("<Q", length) + text + data)


def copy_case(name, folder):
    """A writable copy of a golden checkpoint."""
    target = folder / name
    target.mkdir(parents=True)
    for source in (GOLDENS / name).iterdir():
        if source.name != "golden.safetensors":
            shutil.copyfile(source, target / source.name)
    return target


class Case:
    """One golden case: a checkpoint folder, and the expected outputs of its MoE layers."""

    def __init__(self, name):
        self.name = name
        self.folder = GOLDENS / name
        self.golden, self.metadata = read_safetensors(self.folder / "golden.safetensors")
        self.layers = [int(layer) for layer in self.metadata["moe_layers"].split(",")]
        self._weights = None

    def bound(self, compute_dtype):
        return float(self.metadata[f"max_error_{compute_dtype}"])

    def get(self, layer, what):
        return self.golden[f"layers.{layer}.{what}"]

    @property
    def weights(self):
        if self._weights is None:
            self._weights = {}
            for file in self.folder.glob("model*.safetensors"):
                self._weights.update(read_safetensors(file)[0])
        return self._weights

    def weight(self, layer, pattern):
        """The tensor of a layer whose name ends with the regular expression `pattern`, or None. At most one may match."""
        found = [name for name in self.weights
                 if re.search(rf"layers\.{layer}\.(.*\.)?{pattern}$", name) and not name.startswith("mtp.")]
        assert len(found) <= 1, found
        return self.weights[found[0]] if found else None

    def in_blocks(self, layer, pattern, block=128):
        """A weight, dequantised if it is FP8 with block scales."""
        weight, scale = self.weight(layer, rf"{pattern}\.weight"), self.weight(layer, rf"{pattern}\.weight_scale_inv")
        if scale is None:
            return weight
        return weight * np.repeat(np.repeat(scale, block, 0), block, 1)[:weight.shape[0], :weight.shape[1]]

    def router_logits(self, layer):
        """The router's logits in float64, bias included, as a caller with its own router would send them."""
        weight = self.weight(layer, r"(gate|router)\.((layer|wg)\.)?weight")
        logits = self.get(layer, "input").astype(np.float64) @ weight.astype(np.float64).T
        bias = self.weight(layer, r"router\.bias")
        return logits if bias is None else logits + bias

    def shared_output(self, layer):
        """The shared expert's part of the output in float64, or None."""
        gate, up, down = (self.in_blocks(layer, rf"shared_(experts?|mlp)\.{part}_proj") for part in ("gate", "up", "down"))
        if gate is None:
            return None
        x = self.get(layer, "input").astype(np.float64)
        g = x @ gate.T.astype(np.float64)
        out = (g / (1 + np.exp(-g)) * (x @ up.T.astype(np.float64))) @ down.T.astype(np.float64)
        scale = self.weight(layer, r"shared_expert_gate\.weight")
        return out if scale is None else out / (1 + np.exp(-(x @ scale.T.astype(np.float64))))
