"""Contradictions made at random: a fact that a checkpoint states twice is changed on one side.

Each row of STATEMENTS is a function of a random generator and a folder. It writes a checkpoint, changes one statement and returns a Case:
the one right answer, the words that a refusal must contain (both statements), and whether the checkpoint must be served or refused.
The daemon must give the right answer or refuse with these words; another answer is the fault that this test looks for.
"""

import copy
import dataclasses
import json

import numpy as np
import pytest

from harness.daemon import Daemon
from harness.paths import SANITIZER
from harness.quantised import (AWQ, EXPERTS, GPTQ, HIDDEN, VARIANTS, WIDTH, QuantisedCheckpoint, Variant, compressed, gptq,
                               int_quantized, mlx_affine, mlx_mx, mlx_nvfp4, pack_quantized, words)
from harness.tensors import error_per_token, tensor, values_of

TOKENS, SEEDS = 8, 6 if not SANITIZER else 2
PARTS = ("gate_proj", "up_proj", "down_proj")
EITHER, SERVED, REFUSED = "either", "served", "refused"
SECTION = "quantization_config"


@dataclasses.dataclass
class Case:
    checkpoint: QuantisedCheckpoint  # its outputs are the right answer
    words: tuple = ()
    must: str = EITHER
    note: str = ""  # the kind of the note that the log must have if the checkpoint is served


# ---- checkpoints


def plain(w, random):
    stored = w.astype(np.float32)
    return {".weight": ("F32", stored)}, stored.astype(np.float64)


def new(folder, random, quantise, section):
    variant = Variant("", copy.deepcopy(section), quantise)
    checkpoint = QuantisedCheckpoint(folder, variant, seed=int(random.integers(1 << 30)))
    if not section:
        checkpoint.config.pop(SECTION, None)
    return checkpoint


def section(checkpoint):
    return checkpoint.config[SECTION]


def modules():
    return [(part, expert) for expert in range(EXPERTS) for part in PARTS]


def of_all(checkpoint, suffix, change):
    """Replaces the tensor of each module by change(array); None removes it."""
    for part, expert in modules():
        name = checkpoint.module(part, expert) + suffix
        dtype, array = checkpoint.tensors.pop(name)
        changed = change(np.array(array))
        if changed is not None:
            checkpoint.tensors[name] = (dtype, changed)


def one_of(random, values):
    return values[int(random.integers(len(values)))]


def some_module(random, checkpoint):
    return checkpoint.module(*one_of(random, modules()))


# ---- zero points


def zero_points_of_symmetric_codes(random, folder):
    bits, in_full = one_of(random, (4, 8)), bool(random.integers(2))
    middle = 1 << bits - 1
    form = {"checkpoint_format": "gptq_v2" if in_full else "gptq"} if in_full or random.integers(2) else {}
    checkpoint = new(folder, random, gptq(bits, 32, zero_points=False, in_full=in_full), GPTQ | {"bits": bits, "sym": True} | form)
    stored = int(one_of(random, (0, middle - 1, middle, middle + 1, 3)))
    of_all(checkpoint, ".qzeros", lambda a: words(np.full((a.shape[0], a.shape[1] * 32 // bits), stored), bits))
    usual = stored in (0, middle - 1, middle)
    if usual and random.integers(2):
        name = some_module(random, checkpoint) + ".qzeros"
        checkpoint.tensors[name][1][-1, -1] ^= 0x10
        usual = False
    own = stored == (middle if in_full else middle - 1)
    return Case(checkpoint, (".qzeros", f"{SECTION}.sym is true"), SERVED if usual else REFUSED, "" if own else "symmetric_zero_points")


def symmetry_of_asymmetric_codes(random, folder):
    checkpoint = new(folder, random, gptq(4, 32), GPTQ)
    said = one_of(random, (True, False, None))
    section(checkpoint)["sym"] = said
    return Case(checkpoint, (".qzeros", f"{SECTION}.sym is true"), REFUSED if said else SERVED)


def symmetry_of_awq(random, folder):
    """Some programs read `.qzeros` if config.json calls the codes symmetric, and some do not."""
    checkpoint = new(folder, random, VARIANTS["awq"].quantise, AWQ | {"group_size": 32})
    key, symmetric = one_of(random, (("zero_point", False), ("zero_point", True), ("sym", True), ("sym", False)))
    section(checkpoint).pop("zero_point")
    section(checkpoint)[key] = symmetric
    said = (key == "sym") == symmetric
    middle = said and bool(random.integers(2))
    if middle:
        symmetric_awq(checkpoint)
    return Case(checkpoint, (".qzeros", f"{SECTION}.{key} is {str(symmetric).lower()}"), REFUSED if said and not middle else SERVED)


def symmetric_awq(checkpoint):
    """Gives all codes the zero point 8, and the outputs the weights that follow."""
    shift = lambda stored: (stored.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15)[..., [0, 4, 1, 5, 2, 6, 3, 7]]
    for part, expert in modules():
        name = checkpoint.module(part, expert)
        codes = shift(checkpoint.tensors[name + ".qweight"][1])
        codes = codes.reshape(codes.shape[0], -1).astype(np.float64)
        scales = checkpoint.tensors[name + ".scales"][1].astype(np.float64)
        checkpoint.tensors[name + ".qzeros"] = ("I32", np.full(checkpoint.tensors[name + ".qzeros"][1].shape, -0x77777778, np.int64))
        checkpoint.experts[expert][part.split("_")[0]] = ((codes - 8) * np.repeat(scales, 32, 0)[:codes.shape[0]]).T


def two_names_of_symmetry(random, folder):
    """`sym` of GPTQ and `zero_point` of AWQ."""
    checkpoint = new(folder, random, gptq(4, 32), GPTQ)
    has_zero_points = bool(random.integers(2))
    section(checkpoint)["zero_point"] = has_zero_points
    return Case(checkpoint, (f"{SECTION}.sym is false", f"{SECTION}.zero_point is false"), SERVED if has_zero_points else REFUSED)


def symmetry_is_not_said(random, folder):
    checkpoint = new(folder, random, gptq(4, 32, zero_points=False), GPTQ)
    del section(checkpoint)["sym"]
    in_full = bool(random.integers(2))
    if in_full:
        of_all(checkpoint, ".qzeros", lambda a: words(np.full((a.shape[0], a.shape[1] * 8), 8), 4))
    return Case(checkpoint, (".qzeros", "sym"), REFUSED if in_full else SERVED)


def symmetry_of_compressed_tensors(random, folder):
    asymmetric, bits = bool(random.integers(2)), one_of(random, (4, 8))
    checkpoint = new(folder, random, pack_quantized(bits, 32, zero_points=asymmetric), compressed(
        "pack-quantized", num_bits=bits, type="int", strategy="group", group_size=32))
    said = one_of(random, (True, False, None))
    section(checkpoint)["config_groups"]["group_0"]["weights"]["symmetric"] = said
    right = (said is False) == asymmetric
    return Case(checkpoint, ("weight_zero_point", "symmetric"), SERVED if right else REFUSED)


def zero_points_of_symmetric_compressed_tensors(random, folder):
    bits, elements = one_of(random, (4, 8)), bool(random.integers(2))
    style, quantise = ("int-quantized", int_quantized(32)) if elements else ("pack-quantized", pack_quantized(bits, 32))
    checkpoint = new(folder, random, quantise, compressed(style, num_bits=8 if elements else bits, type="int", strategy="group",
                                                          group_size=32, symmetric=True))
    middle = 0 if elements else 1 << bits - 1
    stored = int(one_of(random, (0, middle, 3)))
    for part, expert in modules():
        rows, groups = (HIDDEN, WIDTH // 32) if part == "down_proj" else (WIDTH, HIDDEN // 32)
        zeros = np.full((rows, groups), stored)
        checkpoint.tensors[checkpoint.module(part, expert) + ".weight_zero_point"] = (
            ("I8", zeros) if elements else ("I32", words(zeros.T, bits).T))
    return Case(checkpoint, ("weight_zero_point", "weights.symmetric is true"), REFUSED if stored == 3 else SERVED)


def zero_points_in_bytes(random, folder):
    bits = one_of(random, (4, 8))
    checkpoint = new(folder, random, pack_quantized(bits, 32, zero_points=True), compressed(
        "pack-quantized", num_bits=bits, type="int", strategy="group", group_size=32, symmetric=False))
    for part, expert in modules():
        name = checkpoint.module(part, expert) + ".weight_zero_point"
        packed = checkpoint.tensors[name][1].view(np.uint32).astype(np.uint64)
        rows = WIDTH if part != "down_proj" else HIDDEN
        unpacked = np.stack([packed >> np.uint64(i * bits) & np.uint64((1 << bits) - 1) for i in range(32 // bits)], 1)
        unpacked = unpacked.reshape(-1, packed.shape[1])[:rows].astype(np.int64) - (1 << bits - 1)
        checkpoint.tensors[name] = ("I8", unpacked.astype(np.int8))
    return Case(checkpoint, (), SERVED)


def form_of_zero_points(random, folder):
    in_full, two = bool(random.integers(2)), bool(random.integers(2))
    names = {False: "gptq", True: "gptq_v2"}
    checkpoint = new(folder, random, gptq(4, 32, in_full=in_full), GPTQ)
    keys = list(random.permutation(["checkpoint_format", "format"]))
    section(checkpoint)[keys[0]] = names[in_full]
    other = bool(random.integers(2))
    if two:
        section(checkpoint)[keys[1]] = names[other]
    return Case(checkpoint, (f"{SECTION}.checkpoint_format", f"{SECTION}.format", "gptq_v2"),
                REFUSED if two and other != in_full else SERVED)


def file_beside_config(random, folder):
    checkpoint = new(folder, random, gptq(4, 32, in_full=True), GPTQ | {"checkpoint_format": "gptq_v2"})
    fact = one_of(random, ("checkpoint_format", "sym", "group_size", "desc_act", None))
    wrong = {"checkpoint_format": "gptq", "sym": True, "group_size": 64, "desc_act": True}
    beside = dict(section(checkpoint), **({fact: wrong[fact]} if fact else {}))
    (folder / "quantize_config.json").write_text(json.dumps(beside))
    if fact is None:  # config.json may leave everything to that file
        checkpoint.config.pop(SECTION, None)
    decided = fact in (None, "group_size")  # by the shapes of the tensors
    return Case(checkpoint, ("quantize_config.json", fact or ""), SERVED if decided else REFUSED)


# ---- the order of k


def order_of_gptq(random, folder):
    """Marlin kernels do not read `.g_idx` if desc_act is false, others do."""
    ordered = bool(random.integers(2))
    checkpoint = new(folder, random, gptq(4, 32, ordered=ordered), GPTQ)
    said = one_of(random, (True, False, None)) if ordered else True
    section(checkpoint)["desc_act"] = said
    removed = said is True and bool(random.integers(2))
    if removed:
        keep = some_module(random, checkpoint) if random.integers(2) else None
        for part, expert in modules():
            if checkpoint.module(part, expert) != keep:
                del checkpoint.tensors[checkpoint.module(part, expert) + ".g_idx"]
    contradicts = removed or (ordered and said is False)
    return Case(checkpoint, (f"{SECTION}.desc_act", "g_idx"), REFUSED if contradicts else EITHER)


def one_order_is_missing(random, folder):
    """One matrix against another."""
    checkpoint = new(folder, random, gptq(4, 32, ordered=True), GPTQ | {"desc_act": None})
    del checkpoint.tensors[some_module(random, checkpoint) + ".g_idx"]
    return Case(checkpoint, ("g_idx",), REFUSED)


def order_of_compressed_tensors(random, folder):
    ordered = bool(random.integers(2))
    said = one_of(random, (None, "weight", "static", "group", "group", "group"))
    checkpoint = new(folder, random, pack_quantized(4, 32, ordered=ordered), compressed(
        "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=True, actorder=said))
    removed = ordered and said == "group" and bool(random.integers(2))
    if removed:
        of_all(checkpoint, ".weight_g_idx", lambda a: None)
    if not ordered and random.integers(4):  # the quantiser's "not used"
        for part, expert in modules():
            k = WIDTH if part == "down_proj" else HIDDEN
            checkpoint.tensors[checkpoint.module(part, expert) + ".weight_g_idx"] = ("I32", np.full(k, -1))
    contradicts = removed or ordered != (said == "group")
    return Case(checkpoint, ("g_idx", "config_groups.group_0.weights.actorder" if said else "actorder"),
                REFUSED if contradicts else SERVED)


# ---- the kind of the codes


def kind_of_codes(random, folder):
    """Words, and bytes that hold two codes, do not tell integers from floating-point numbers. AutoRound writes mx_int in bytes."""
    name, key, right, wrong = one_of(random, (
        ("compressed_int4", "type", "int", "float"), ("compressed_mxfp4", "type", "float", "int"),
        ("compressed_nvfp4", "type", "float", "int"), ("compressed_mxfp4", "data_type", "mx_fp", "mx_int"),
        ("quark_mxfp4", "dtype", "fp4", "int4"), ("awq", "data_type", "int", "fp")))
    checkpoint = new(folder, random, VARIANTS[name].quantise, AWQ | {"group_size": 32} if name == "awq" else VARIANTS[name].config)
    said = one_of(random, (right, wrong, None))
    if key == "dtype":
        section(checkpoint)["global_quant_config"] = {"weight": {key: said}}
        path = f"{SECTION}.global_quant_config.weight.{key}"
    elif key == "type":
        section(checkpoint)["config_groups"]["group_0"]["weights"][key] = said
        path = f"{SECTION}.config_groups.group_0.weights.{key}"
    else:
        section(checkpoint).pop("config_groups", None)
        section(checkpoint).update({key: said} if name == "awq" else {"quant_method": "auto-round", "bits": 4, "group_size": 32, key: said})
        path = f"{SECTION}.{key}"
    return Case(checkpoint, (f"{path} is {said}", checkpoint.module()), REFUSED if said == wrong else SERVED)


def rotation(random, folder):
    """Only the quantiser's own code rotates the inputs; the file has no tensor for it."""
    checkpoint = new(folder, random, gptq(4, 32), GPTQ)
    key, value = one_of(random, (("rotation", "hadamard"), ("rotation", None), ("use_hadamard", True), ("use_hadamard", False),
                                 ("convrot", {"size": 64}), ("rotation_config", {"hadamard_type": "hadamard"}),
                                 ("rotation_config", {}), ("spinquant_config", {"r4": True}),
                                 ("hadamard_config", {"hadamard_type": "hadamard", "block_size": 32})))
    beside = bool(random.integers(2))
    said = section(checkpoint) | {key: value}
    if beside:
        (folder / "quantize_config.json").write_text(json.dumps(said))
    else:
        section(checkpoint)[key] = value
    return Case(checkpoint, (f"{'quantize_config.json' if beside else SECTION}.{key}", "rotates"), REFUSED if value else SERVED)


def rotation_of_quark(random, folder):
    """Quark fuses R1 and R2 into the weights; R4, and R1 if it is online, rotate inputs. The matrix lies outside the block."""
    checkpoint = new(folder, random, VARIANTS["quark_mxfp4"].quantise, VARIANTS["quark_mxfp4"].config)
    what, rotates = one_of(random, (({"r4": True}, "r4"), ({"r1": True, "online_r1_rotation": True}, "online_r1_rotation"),
                                    ({"r1": True, "r2": True, "online_r1_rotation": False}, "")))
    section(checkpoint)["algo_config"] = [{"name": "smooth", "alpha": 1},
                                          {"name": "rotation", "r1": False, "r2": False, "r3": False, "r4": False} | what]
    if rotates:
        checkpoint.tensors["shared_input_rotation_32"] = ("I8", np.ones((32, 32)))
    return Case(checkpoint, (f"{SECTION}.algo_config[1].{rotates}", "rotates"), REFUSED if rotates else SERVED)


# ---- sizes


def of_integers(random, folder):
    """(checkpoint, the object with its sizes, that object's path, its key for bits, its bits, suffixes of codes and scales)."""
    kind, bits = one_of(random, (("gptq", 4), ("gptq", 8), ("compressed", 4), ("compressed", 8), ("awq", 4)))
    if kind == "compressed":
        checkpoint = new(folder, random, pack_quantized(bits, 32), compressed(
            "pack-quantized", num_bits=bits, type="int", strategy="group", group_size=32, symmetric=True))
        where = section(checkpoint)["config_groups"]["group_0"]["weights"]
        return checkpoint, where, f"{SECTION}.config_groups.group_0.weights", "num_bits", bits, ".weight_packed", ".weight_scale"
    if kind == "awq":
        checkpoint = new(folder, random, VARIANTS["awq"].quantise, AWQ | {"group_size": 32})
    else:
        checkpoint = new(folder, random, gptq(bits, 32), GPTQ | {"bits": bits})
    return checkpoint, section(checkpoint), SECTION, "bits", bits, ".qweight", ".scales"


def bits(random, folder):
    checkpoint, where, path, key, right, codes, _ = of_integers(random, folder)
    where[key] = int(one_of(random, (2, 3, 4, 8)))
    return Case(checkpoint, (f"{path}.{key}", codes), SERVED if where[key] == right else REFUSED)


def group_size(random, folder):
    checkpoint, where, path, _, _, _, scales = of_integers(random, folder)
    where["group_size"] = int(one_of(random, (-1, 16, 32, 48, 64, 128)))
    return Case(checkpoint, (f"{path}.group_size", scales), SERVED if where["group_size"] == 32 else REFUSED)


def strategy(random, folder):
    checkpoint = new(folder, random, pack_quantized(4, 32), compressed("pack-quantized", num_bits=4, group_size=32, symmetric=True))
    said = one_of(random, ("group", "channel", "tensor"))
    section(checkpoint)["config_groups"]["group_0"]["weights"]["strategy"] = said
    return Case(checkpoint, ("strategy", "group_size"), SERVED if said == "group" else REFUSED)


def block_size(random, folder):
    variant = VARIANTS["fp8_blocks"]
    checkpoint = new(folder, random, variant.quantise, variant.config)
    section(checkpoint)["weight_block_size"] = one_of(random, ([128, 128], [64, 64], [32, 64], [1, 128], [64, 128]))
    right = section(checkpoint)["weight_block_size"] == [128, 128]
    return Case(checkpoint, (f"{SECTION}.weight_block_size", ".weight_scale_inv"), SERVED if right else REFUSED)


def group_size_is_not_said(random, folder):
    """A short last group: the number of scales fits groups of two sizes."""
    group = one_of(random, (32, 64, 128))
    checkpoint = new(folder, random, gptq(4, group), GPTQ)
    del section(checkpoint)["group_size"]
    of_all(checkpoint, ".g_idx", lambda a: None)
    return Case(checkpoint, (".scales", "nothing about the size of a group"), SERVED if group == 32 else EITHER)


def group_size_of_another_format(random, folder):
    variant = VARIANTS[one_of(random, ("modelopt_fp8", "fbgemm_per_row", "compressed_fp8_per_tensor"))]
    checkpoint = new(folder, random, variant.quantise, variant.config)
    checkpoint.config[SECTION].pop("config_groups", None)
    checkpoint.config[SECTION]["group_size"] = int(one_of(random, (16, 32, 128)))
    return Case(checkpoint, (), SERVED, "scales_span_more")


SECTIONS = {"gptq": (gptq(4, 32), GPTQ), "awq": (VARIANTS["awq"].quantise, AWQ | {"group_size": 32}),
            "fp8": (VARIANTS["fp8_blocks"].quantise, VARIANTS["fp8_blocks"].config)}
OTHERS = {"fp8_blocks": VARIANTS["fp8_blocks"].quantise, "fp8_rows": VARIANTS["fbgemm_per_row"].quantise,
          "mxfp8": VARIANTS["mxfp8"].quantise, "nvfp4": VARIANTS["modelopt_nvfp4"].quantise, "int8_rows": int_quantized(),
          "int4": pack_quantized(4, 16), "gptq": gptq(4, 32), "awq": VARIANTS["awq"].quantise}


def section_of_another_format(random, folder):
    """Down has another format than the section describes: sizes of GPTQ and AWQ are those of their integers, blocks those of FP8."""
    name = one_of(random, list(SECTIONS))
    quantise, described = SECTIONS[name]
    other = one_of(random, [o for o in OTHERS if name == "fp8" and o != "fp8_blocks" or name != "fp8" and o not in ("gptq", "awq")])
    checkpoint = QuantisedCheckpoint(folder, Variant("", described, quantise, (("down", OTHERS[other]),)),
                                     seed=int(random.integers(1 << 30)))
    return Case(checkpoint, (), SERVED)


def weight_shape(random, folder):
    checkpoint = new(folder, random, pack_quantized(4, 32), VARIANTS["compressed_int4"].config)
    name = some_module(random, checkpoint) + ".weight_shape"
    checkpoint.tensors[name][1][int(random.integers(2))] += int(one_of(random, (0, -1, 1, 8)))
    rows, columns = (HIDDEN, WIDTH) if "down" in name else (WIDTH, HIDDEN)
    right = list(checkpoint.tensors[name][1]) == [rows, columns]
    return Case(checkpoint, (name, "config.json"), SERVED if right else REFUSED)


def weight_shape_of_gate_and_up(random, folder):
    checkpoint = new(folder, random, pack_quantized(4, 32), VARIANTS["compressed_int4"].config)
    for expert in range(EXPERTS):
        gate, up, both = (checkpoint.module(part, expert) for part in ("gate_proj", "up_proj", "gate_up_proj"))
        for suffix in (".weight_packed", ".weight_scale", ".weight_shape"):
            (dtype, first), (_, second) = checkpoint.tensors.pop(gate + suffix), checkpoint.tensors.pop(up + suffix)
            checkpoint.tensors[both + suffix] = (dtype, np.concatenate([first, second]))
        checkpoint.tensors[both + ".weight_shape"] = ("I64", np.array([2 * WIDTH, HIDDEN]))
    name = checkpoint.module("gate_up_proj", int(random.integers(EXPERTS))) + ".weight_shape"
    wrong = bool(random.integers(2))
    checkpoint.tensors[name][1][0] -= WIDTH if wrong else 0
    return Case(checkpoint, (name, "config.json"), REFUSED if wrong else SERVED)


# ---- settings of modules

NAMES = {  # the object of settings, how it names all experts, how it names other modules, the object inside
    "dynamic": ("+:.*\\.experts\\.\\d+\\..*", "+:.*self_attn.*", ""),
    "extra_config": (".*experts.*_proj", ".*self_attn.*", ""),
    "quantized_layers": ("model.layers.0.mlp.experts", "model.layers.0.self_attn", ""),
    "layer_quant_config": ("*mlp.experts.*", "*self_attn*", "weight"),
}
WRONG = {"bits": 8, "group_size": 64, "sym": True}
RIGHT = {"bits": 4, "group_size": 32, "sym": False}


def override(random, folder):
    """Each fact is right or wrong in the section, and right, wrong or absent in an override for the experts; the override counts."""
    container = one_of(random, list(NAMES))
    experts, others, inside = NAMES[container]
    base = {key: one_of(random, (RIGHT, WRONG))[key] for key in RIGHT}
    over = {key: one_of(random, (RIGHT, RIGHT, WRONG))[key] for key in RIGHT if random.integers(2)}
    for key in RIGHT:  # most cases are right
        if {**base, **over}[key] != RIGHT[key] and random.integers(4):
            over[key] = RIGHT[key]
    members = {others: WRONG, experts: over}
    members = {name: {inside: facts} if inside else facts for name, facts in members.items()}
    # An object without facts is one of activations.
    checkpoint = new(folder, random, gptq(4, 32), GPTQ | base | {container: members})
    wrong = [key for key in RIGHT if {**base, **over}[key] != RIGHT[key]]
    paths = [f"{SECTION}.{container}.{experts}{'.' + inside if inside else ''}.{key}" if key in over else f"{SECTION}.{key}"
             for key in wrong]
    tensors = {"bits": ".qweight", "group_size": ".scales", "sym": ".qzeros"}
    return Case(checkpoint, (paths[0], tensors[wrong[0]]) if wrong else (), REFUSED if wrong else SERVED)


def groups(random, folder):
    """Groups for the experts and for other modules. If several name the experts, the shapes of the tensors decide."""
    facts = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    wrong = facts | one_of(random, ({"group_size": 64}, {"num_bits": 8}))
    mine = one_of(random, (["Linear"], ["re:.*mlp\\.experts\\.[0-9]+\\.(gate|up|down)_proj$"],
                           [f"model.layers.0.mlp.experts.{e}.{p}" for p, e in modules()]))
    kinds = [facts if random.integers(2) else wrong for _ in range(int(random.integers(1, 4)))]
    members = [{"targets": mine, "weights": kind} for kind in kinds]
    members += [{"targets": [f"re:.*layers\\.{10 + i}\\..*"], "weights": wrong} for i in range(int(random.integers(0, 12)))]
    order = random.permutation(len(members))
    named = {f"group_{i}": members[i] for i in order}
    checkpoint = new(folder, random, pack_quantized(4, 32), {"quant_method": "compressed-tensors", "format": "mixed-precision",
                                                             "config_groups": named})
    key = "group_size" if wrong["group_size"] == 64 else "num_bits"
    return Case(checkpoint, (f"{SECTION}.config_groups.group_", f".weights.{key}", ".weight_"), SERVED if facts in kinds else REFUSED)


def groups_of_a_class_and_of_a_name(random, folder):
    """A group that names down, by its name or an expression, counts before one for all linear layers, in whatever order they stand."""
    facts = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    of_class, of_down, format_of_all, format_of_down = one_of(random, (
        ({}, {"symmetric": False}, {}, {"zero_points": True}),
        ({"symmetric": False}, {"symmetric": True}, {"zero_points": True}, {}),
        ({"group_size": 128}, {"group_size": 96}, {"group": 128}, {"group": 96}),
        ({"actorder": "group"}, {"actorder": None}, {"ordered": True}, {}),
        ({}, {"actorder": "group"}, {}, {"ordered": True})))
    quantise = lambda facts: pack_quantized(**({"bits": 4, "group": 32} | facts))
    names = one_of(random, (["re:.*down_proj"], [f"model.layers.0.mlp.experts.{e}.down_proj" for e in range(EXPERTS)]))
    members = [{"targets": ["Linear"], "weights": facts | of_class}, {"targets": names, "weights": facts | of_down}]
    two = not random.integers(4)
    if two:
        members.append({"targets": ["re:.*experts.*down_proj"], "weights": facts | of_class})
    named = {f"group_{i}": members[m] for i, m in enumerate(random.permutation(len(members)))}
    section = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": named}
    checkpoint = QuantisedCheckpoint(folder, Variant("", section, quantise(format_of_all), (("down", quantise(format_of_down)),)),
                                     seed=int(random.integers(1 << 30)))
    left = not two and (format_of_down.get("zero_points") or format_of_down.get("ordered")) and random.integers(2)
    if left:  # what the group of the name says, the tensors do not
        suffix = ".weight_zero_point" if format_of_down.get("zero_points") else ".weight_g_idx"
        for expert in range(EXPERTS):
            del checkpoint.tensors[checkpoint.module("down_proj", expert) + suffix]
        return Case(checkpoint, ("down_proj" + suffix, "symmetric" if "zero" in suffix else "actorder"), REFUSED)
    return Case(checkpoint, ("config_groups.group_", "both name", "down_proj"), REFUSED if two else SERVED)


def no_group(random, folder):
    checkpoint = new(folder, random, pack_quantized(4, 32), compressed("pack-quantized", num_bits=8, group_size=64))
    section(checkpoint)["config_groups"]["group_0"]["targets"] = ["re:.*self_attn.*"]
    return Case(checkpoint, (), SERVED, "module_in_no_group")


def ignore_list(random, folder):
    name, key = one_of(random, (("fp8_blocks", "modules_to_not_convert"), ("compressed_int4", "ignore"), ("gptq", "ignored_layers"),
                                ("modelopt_nvfp4", "exclude_modules")))
    checkpoint = new(folder, random, VARIANTS[name].quantise, VARIANTS[name].config)
    entry = one_of(random, ("model.layers.0.mlp.experts", "mlp", "model.layers.0*", "*experts*", "re:.*mlp\\.experts.*",
                            "re:model\\.layers\\.(0|1)\\..*gate_proj", "model.layers.0.mlp.experts.0.gate_proj"))
    section(checkpoint)[key] = ["lm_head", entry]
    return Case(checkpoint, (), SERVED, "excluded_but_quantised")


def second_section(random, folder):
    """All programs read quantization_config of the outermost object. Without it they differ."""
    checkpoint = new(folder, random, pack_quantized(4, 32), VARIANTS["compressed_int4"].config)
    other = compressed("pack-quantized", num_bits=8, group_size=64)
    if random.integers(2):
        checkpoint.config["compression_config"] = other
        return Case(checkpoint, (), SERVED, "quantisation_sections")
    first, second = one_of(random, ((section(checkpoint), other), (other, section(checkpoint)), (section(checkpoint), {})))
    text = checkpoint.config | {"model_type": "qwen3_vl_moe_text", SECTION: first}
    checkpoint.config = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe", "text_config": text,
                         "compression_config": second, SECTION: None if second else {}}
    return Case(checkpoint, ("text_config", SECTION, "compression_config"), REFUSED if second else SERVED)


def mode_of_mlx(random, folder):
    """mlx-lm makes layers of that mode, and fails on tensors of another."""
    quantise, mode, bits, group = one_of(random, ((mlx_affine(4, 32), "affine", 4, 32), (mlx_mx(4), "mxfp4", 4, 32),
                                                  (mlx_mx(8), "mxfp8", 8, 32), (mlx_nvfp4(), "nvfp4", 4, 16)))
    said = one_of(random, (mode, mode, "affine", "mxfp4", "mxfp8", "nvfp4"))
    checkpoint = new(folder, random, quantise, {})
    checkpoint.config["quantization"] = {"bits": bits, "group_size": group, "mode": said}
    return Case(checkpoint, (f"quantization.mode is {said}", "_proj.weight"), SERVED if said == mode else REFUSED)


# ---- the rest of config.json


def sizes_of_the_model(random, folder):
    checkpoint = new(folder, random, plain, {})
    key = one_of(random, ("hidden_size", "moe_intermediate_size", "num_experts"))
    step = int(one_of(random, (-1, 0, 1)))
    checkpoint.config[key] += step
    return Case(checkpoint, ("config.json", "model.layers.0.mlp"), REFUSED if step else SERVED)


def two_names_of_a_setting(random, folder):
    checkpoint = new(folder, random, plain, {})
    other = int(random.integers(EXPERTS - 1, EXPERTS + 2))
    checkpoint.config["num_local_experts"] = other
    return Case(checkpoint, ("num_experts", "num_local_experts"), SERVED if other == EXPERTS else REFUSED)


def name_of_another_model(random, folder):
    """Qwen3's code does not read these names: alone they are refused, beside the own name they have no effect."""
    checkpoint = new(folder, random, plain, {})
    own, key, other = one_of(random, (("num_experts_per_tok", "moe_topk", 3), ("num_experts_per_tok", "moe_top_k", 1),
                                      ("num_experts_per_tok", "num_experts_per_token", 2), ("norm_topk_prob", "moe_renormalize", False)))
    checkpoint.config[key] = other
    alone = bool(random.integers(2))
    if alone:
        del checkpoint.config[own]
    return Case(checkpoint, (f"{key} is {str(other).lower()}", own), REFUSED if alone else SERVED)


def top_and_text_model(random, folder):
    """Of a multimodal wrapper programs read the text model's object; without a wrapper transformers reads the outer one."""
    checkpoint = new(folder, random, plain, {})
    text = dict(checkpoint.config)
    other = one_of(random, ({"num_experts_per_tok": 1}, {"num_experts": 3}, {"norm_topk_prob": False}, {}))
    key = next(iter(other), "")
    wrapper = bool(random.integers(2))
    if wrapper:
        checkpoint.config.update(architectures=["Qwen3VLMoeForConditionalGeneration"], model_type="qwen3_vl_moe")
        text["model_type"] = "qwen3_vl_moe_text"
    elif random.integers(2):
        text.pop(key, None)
    checkpoint.config.update(text_config=text, **other)
    return Case(checkpoint, (key, f"text_config.{key}"), REFUSED if other and not wrapper else SERVED)


def text_model_without_type(random, folder):
    """transformers takes the object that the wrapper's class knows, programs that look for a model_type the outer one."""
    checkpoint = new(folder, random, plain, {})
    text = {key: value for key, value in checkpoint.config.items() if key not in ("model_type", "quantization_config")}
    other = one_of(random, ({"num_experts_per_tok": 1}, {"num_experts": 3}, {"hidden_act": "gelu"}, {"hidden_act": None}, {}))
    checkpoint.config.update(architectures=["Qwen3VLMoeForConditionalGeneration"], model_type="qwen3_vl_moe", hidden_act="silu")
    text.update(architectures=["Qwen3MoeForCausalLM"], hidden_act="silu")
    text.update(other)
    checkpoint.config["text_config"] = text
    key = next(iter(other), "")
    return Case(checkpoint, (key, f"text_config.{key}"), REFUSED if key and other[key] else SERVED)


def two_text_models(random, folder):
    """SGLang prefers llm_config and language_config to text_config."""
    checkpoint = new(folder, random, plain, {})
    text, key = checkpoint.config | {"model_type": "qwen3_vl_moe_text"}, one_of(random, ("llm_config", "language_config"))
    other = one_of(random, (text, text | {"num_experts_per_tok": 1}))
    checkpoint.config = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe", "text_config": text,
                         key: other}
    return Case(checkpoint, ("text_config", key), SERVED if other == text else REFUSED)


def class_and_model_type(random, folder):
    checkpoint = new(folder, random, plain, {})
    other = one_of(random, (("model_type", "olmoe"), ("architectures", ["MixtralForCausalLM"]), ("model_type", "my_qwen3"), None))
    if other:
        checkpoint.config[other[0]] = other[1]
    contradicts = other and other[1] != "my_qwen3"
    return Case(checkpoint, ("model_type", "architectures[0]"), REFUSED if contradicts else SERVED)


def which_layers_have_experts(random, folder):
    checkpoint = new(folder, random, plain, {})
    change = one_of(random, ({"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}, {"mlp_layer_types": ["dense"]}, {"num_hidden_layers": 2},
                             {"mlp_layer_types": ["sparse"], "mlp_only_layers": [0]}, {}))
    checkpoint.config.update(change)
    served = not change or "sparse" in change.get("mlp_layer_types", ())
    return Case(checkpoint, ("config.json says that layer",), SERVED if served else REFUSED)


def setting_of_one_layer(random, folder):
    checkpoint = new(folder, random, plain, {})
    other = int(one_of(random, (1, 2, 3)))
    checkpoint.config["per_layer_config"] = {"0": {"num_experts_per_tok": other}}
    return Case(checkpoint, ("per_layer_config.0", "num_experts_per_tok"), SERVED if other == 2 else REFUSED)


def dtype_of_elements(random, folder):
    checkpoint = new(folder, random, plain, {})
    checkpoint.config["torch_dtype"] = one_of(random, ("float16", "bfloat16", "float32"))
    return Case(checkpoint, (), SERVED)


STATEMENTS = [zero_points_of_symmetric_codes, symmetry_of_asymmetric_codes, symmetry_is_not_said, symmetry_of_compressed_tensors,
              zero_points_of_symmetric_compressed_tensors, zero_points_in_bytes, form_of_zero_points, file_beside_config,
              symmetry_of_awq, two_names_of_symmetry, kind_of_codes, rotation, rotation_of_quark, order_of_gptq, one_order_is_missing,
              order_of_compressed_tensors, bits, group_size, group_size_is_not_said, group_size_of_another_format,
              section_of_another_format, strategy, block_size, weight_shape, weight_shape_of_gate_and_up, override, groups,
              groups_of_a_class_and_of_a_name, no_group, ignore_list, second_section, mode_of_mlx, sizes_of_the_model,
              two_names_of_a_setting, name_of_another_model, top_and_text_model, text_model_without_type, two_text_models,
              class_and_model_type, which_layers_have_experts, setting_of_one_layer, dtype_of_elements]


def check(case):
    case.checkpoint.write()
    daemon = Daemon("--compute-dtype", "f32", "--admin", "off", model=case.checkpoint.folder, http="off", tcp=False, wait=False)
    try:
        with daemon._more:
            daemon._more.wait_for(lambda: daemon._ended or daemon.events("ready"), 60)
        if not daemon.events("ready"):
            assert daemon.wait_exit() == 65, daemon.log
            assert case.must != SERVED, daemon.log
            message = daemon.events("load_failed")[0]["message"].replace("\\\\", "\\")
            assert all(word in message for word in case.words), f"{case.words} are not all in: {message}"
            return
        hidden = case.checkpoint.inputs(TOKENS)
        with daemon.client() as client:
            answer = values_of(client.forward(layer=0, hidden=tensor(hidden)).output)
        worst = error_per_token(answer, case.checkpoint.outputs(hidden)).max()
        assert worst <= 1e-5, f"another answer without a word, error {worst}: {case.checkpoint.config}"
        assert case.must != REFUSED, case.checkpoint.config
        assert not case.note or case.note in [note["kind"] for note in daemon.events("checkpoint_note")], daemon.log
    finally:
        daemon.kill()


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.__name__)
def test_a_contradiction_is_answered_rightly_or_refused(statement, tmp_path):
    for seed in range(SEEDS):
        random = np.random.default_rng([seed, *statement.__name__.encode()])
        case = statement(random, tmp_path / str(seed))
        try:
            check(case)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} of {statement.__name__}: {error}") from None
