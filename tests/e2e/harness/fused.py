"""Writes checkpoints whose tensors hold all experts of a layer, in the formats of common quantisers."""

import dataclasses

import numpy as np

from .quantised import EXPERTS, LAYER, WIDTH, QuantisedCheckpoint, Variant

DOTTED = lambda suffix: suffix  # gate_up_proj.weight_scale


def bare(suffix):
    """gate_up_proj, gate_up_proj_scale_inv."""
    return "" if suffix == ".weight" else suffix.replace(".weight_", "_").replace(".", "_")


def underscored(suffix):
    """gate_up_proj, gate_up_proj_weight_scale."""
    return "" if suffix == ".weight" else "_" + suffix[1:]


@dataclasses.dataclass(frozen=True)
class Fused:
    """name: the format's name in Describe. quantise: a format of quantised.py.

    names: maps ".weight_scale" to the end of the tensor's name. transposed: the matrices of codes and scales, and of what else has two
    dimensions. each: gate and up have scales of one number each. numbers: the shape of stacked scales of one number; () for one number
    that all experts share. ignored: tensors that do not change the answers.
    """
    name: str
    config: dict
    quantise: object
    names: object = DOTTED
    transposed: bool = False
    each: bool = False
    numbers: tuple = None
    stacked: bool = False  # gate_proj, up_proj and down_proj instead of a fused pair
    ignored: tuple = ()


def joined(gate, up):
    """Two matrices' tensors, along n."""
    return {suffix: (gate[suffix][0], np.concatenate([np.atleast_1d(gate[suffix][1]), np.atleast_1d(up[suffix][1])])) for suffix in gate}


class FusedCheckpoint(QuantisedCheckpoint):
    """A QuantisedCheckpoint whose experts' tensors are fused or stacked."""

    def __init__(self, folder, fused, seed=1):
        super().__init__(folder, Variant(fused.name, fused.config, lambda w, random: ({}, w)), seed)
        self.fused = fused
        stored = [self.quantise_expert(e) for e in range(EXPERTS)]
        for part in stored[0]:
            for suffix in stored[0][part]:
                self.tensors[f"model.layers.{LAYER}.mlp.experts.{part}{fused.names(suffix)}"] = self.stack(
                    [expert[part][suffix] for expert in stored])
            for name in fused.ignored:
                self.tensors[f"model.layers.{LAYER}.mlp.experts.{part}{name}"] = ("F32", np.full(EXPERTS, 1.5))
        self.write()

    def quantise_expert(self, e):
        """{part: {suffix: (dtype, array)}}. Replaces the expert's weights by what the tensors mean."""
        parts, random, quantise = self.experts[e], np.random.default_rng(7), self.fused.quantise
        down, parts["down"] = quantise(parts["down"], random)
        if self.fused.stacked or self.fused.each:
            gate, parts["gate"] = quantise(parts["gate"], random)
            up, parts["up"] = quantise(parts["up"], random)
            return {"gate_proj": gate, "up_proj": up, "down_proj": down} if self.fused.stacked else {
                "gate_up_proj": joined(gate, up), "down_proj": down}
        both, meant = quantise(np.concatenate([parts["gate"], parts["up"]]), random)
        parts["gate"], parts["up"] = meant[:WIDTH], meant[WIDTH:]
        return {"gate_up_proj": both, "down_proj": down}

    def stack(self, tensors):
        dtype, arrays = tensors[0][0], [np.asarray(array) for _, array in tensors]
        if arrays[0].ndim == 2 and self.fused.transposed:
            arrays = [array.T for array in arrays]
        stacked = np.stack(arrays)
        if stacked.size == EXPERTS and self.fused.numbers is not None:
            assert self.fused.numbers or len(set(stacked.reshape(-1).tolist())) == 1
            stacked = stacked.reshape(self.fused.numbers) if self.fused.numbers else stacked.reshape(-1)[0]
        return dtype, stacked
