"""Models in several GGUF files: parts that do not belong together, and parts that are not needed and may be missing."""

import dataclasses
import struct

from gguf import GGMLQuantizationType as Type

from harness.daemon import run_program
from harness.gguf_models import QWEN, Model, Spec, refused
from harness.tensors import error_per_token, tensor, values_of

LAYERS, OF_LAYER = 4, 6  # a layer of QWEN: three stacks of experts, the router, a norm, and a matrix of the attention
MISSING = "parts are missing", "download it", "serve only layers whose parts are there (--layers A-B)"


def split(folder, of_part=OF_LAYER, spec=QWEN, change=None):
    """A model of LAYERS equal layers; with OF_LAYER tensors in a part, part N ends with the first but one tensor of layer N - 1."""
    model = Model(folder, spec, Type.Q8_0)
    model.path.unlink()
    model.repeat(LAYERS)
    if change:
        change(model.tensors)
    model.write(0, of_part)
    return model, sorted(folder.glob("*.gguf"))


def keep(parts, *numbers):
    for number, part in enumerate(parts, 1):
        if number not in numbers:
            part.unlink()


def serves(model, start_daemon, layers, first, last):
    daemon = start_daemon("--compute-dtype", "f32", "--layers", layers, model=model.path)
    x = model.inputs(8)
    with daemon.client() as client:
        assert [layer.layer for layer in client.describe().models[0].layers] == list(range(first, last + 1))
        for layer in range(first, last + 1):
            output = client.forward(layer=layer, hidden=tensor(x)).output
            assert error_per_token(values_of(output), model.outputs(x)).max() <= 1e-5
    daemon.stop()
    return daemon


def test_parts_of_other_layers_may_be_missing(tmp_path, start_daemon):
    """Part 1 has the metadata, and of layer 0 all but the last tensor; part 2 the rest of layer 0 and so on; part 5 the rest of layer 3."""
    model, parts = split(tmp_path)
    assert len(parts) == 5
    keep(parts, 1, 3, 4)
    daemon = serves(model, start_daemon, "2-2", 2, 2)
    (note,) = [event for event in daemon.events("checkpoint_note") if event["kind"] == "missing_parts"]
    assert f"2 of 5 parts are missing ({parts[1].name}, {parts[4].name})" in note["message"]
    up = "tensor blk.{}.ffn_up_exps.weight"
    refused(model.path, up.format(0), parts[1].name, *MISSING, options=("--layers", "0-0"))
    refused(model.path, up.format(3), parts[4].name, *MISSING, options=("--layers", "2-3"))
    refused(model.path, "tensor blk.1.ffn_", parts[1].name, *MISSING, options=("--layers", "1-2"))
    refused(model.path, "tensor blk.0.ffn_up_exps.weight", *MISSING)


def test_a_layer_that_is_missing_altogether_is_refused(tmp_path):
    """Whether the metadata say that it holds experts, or the tensors alone would tell."""
    for name, spec in ("by metadata", QWEN), ("by tensors", Spec("laguna", {"expert_gating_func": 2}, score="sigmoid", select_bias=True,
                                                                 norm=True, model_type="laguna")):
        model, parts = split(tmp_path / name, of_part=OF_LAYER + spec.select_bias, spec=spec)
        keep(parts, 1, 2, 5)
        refused(model.path, "tensor blk.2.ffn_down_exps", parts[2].name, *MISSING, options=("--layers", "1-2"))


def test_the_first_part_must_be_there(tmp_path):
    model, parts = split(tmp_path)
    keep(parts, 2, 3, 4, 5)
    refused(parts[1], "split.no is 1: this is a later part of the model; name the first, -00001-of-00005.gguf")
    refused(parts[0], "there is no file")
    refused(tmp_path, "of a model in several parts the first, -00001-of-")


def test_an_optional_tensor_may_be_in_a_missing_part(tmp_path, start_daemon):
    """A layer that lacks a tensor which another layer has is not served: nothing tells that its own is not in the missing part."""
    def scales(tensors):  # the last of the layer by name, at the beginning of the next part
        for layer in range(LAYERS):
            tensors[f"blk.{layer}.ffn_up_exps.zz"] = tensors["blk.0.ffn_norm.weight"]
        for name in sorted(tensors):
            tensors[name] = tensors.pop(name)
    model, parts = split(tmp_path, OF_LAYER + 1, change=scales)
    keep(parts, 1, 3, 5)
    refused(model.path, "tensor blk.2.ffn_up_exps.zz, which another layer has, is in none of the parts", *MISSING,
            options=("--layers", "2-2"))


def test_one_layer_alone_tells_nothing_about_itself(tmp_path):
    model = Model(tmp_path, QWEN, Type.Q8_0)
    model.path.unlink()
    model.tensors["output.weight"] = model.tensors["blk.0.ffn_norm.weight"]
    model.write(0, OF_LAYER + 1)
    keep(sorted(tmp_path.glob("*.gguf")), 1)
    refused(model.path, "a second layer with experts, which tells the tensors that layer 0 has, is in none of the parts", "download it")


def set_total(parts, total):
    """split.tensors.count of each part."""
    for part in parts:
        data = bytearray(part.read_bytes())
        struct.pack_into("<I", data, data.index(b"split.tensors.count") + len(b"split.tensors.count") + 4, total)
        part.write_bytes(data)


def test_the_number_of_tensors_is_checked_with_missing_parts_too(tmp_path):
    model, parts = split(tmp_path)
    parts[4].unlink()
    there = 4 * OF_LAYER
    set_total(parts[:4], there - 1)
    refused(model.path, f"split.tensors.count is {there - 1}, but the 4 parts have {there} tensors: one of them is another model's")
    set_total(parts[:4], there)  # then the missing part has none
    refused(model.path, "tensor blk.3.ffn_up_exps.weight is missing; the file's metadata")


def test_a_block_that_predicts_further_tokens_is_none_of_the_decoder(tmp_path):
    """Also if the tensors that tell it are in a missing part."""
    spec = dataclasses.replace(QWEN, arch="qwen3next", keys={"nextn_predict_layers": 1})

    def predict(tensors):
        tensors[f"blk.{LAYERS - 1}.nextn.eh_proj.weight"] = tensors["blk.0.ffn_norm.weight"]
    model, parts = split(tmp_path, len(Model(tmp_path / "count", spec).tensors) + 1, spec, predict)
    parts[-1].unlink()
    done = run_program("expertd", "--model", model.path, "--listen", "127.0.0.1:0", "--http", "off", "--layers", "3-3")
    assert done.returncode == 78 and "the model has layers 0-2" in done.stderr, done.stderr[-600:]


def test_parts(tmp_path):
    first = Model(tmp_path, QWEN, Type.Q8_0, parts=3).path
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 3
    refused(parts[1], "split.no is 1: this is a later part of the model; name the first, -00001-of-00003.gguf")
    renamed = tmp_path / "other.gguf"
    first.rename(renamed)
    refused(renamed, "split.count is 3, but the name does not end in -00001-of-00003.gguf")
    renamed.rename(first)
    third = parts[2].read_bytes()
    parts[2].unlink()
    refused(first, f"1 of 3 parts is missing ({parts[2].name}): download it, or serve only layers whose parts are there (--layers A-B)")
    parts[2].write_bytes(parts[1].read_bytes())
    refused(first, "split.no is 1 and split.count is 3, but by its name it is part 3 of 3")
    parts[2].write_bytes(third[:-100])
    refused(first, parts[2].name, "the file is truncated")
    parts[2].write_bytes(third)
    holder = {name: next(p for p in parts if name in p.read_bytes()) for name in (b"ffn_gate_exps", b"ffn_down_exps")}
    assert len(set(holder.values())) == 2
    down = holder[b"ffn_down_exps"]
    down.write_bytes(down.read_bytes().replace(b"ffn_down_exps", b"ffn_gate_exps"))
    refused(first, "ffn_gate_exps.weight is in two parts of the model")


def test_a_part_of_another_architecture(tmp_path):
    first = Model(tmp_path, QWEN, Type.Q8_0, parts=2).path
    second = sorted(tmp_path.glob("*.gguf"))[1]
    data = second.read_bytes()
    count, keys = struct.unpack_from("<QQ", data, 8)
    name, value = b"general.architecture", b"qwen2moe"
    pair = struct.pack("<Q", len(name)) + name + struct.pack("<IQ", 8, len(value)) + value
    padding = b"general.tags", 32 - (len(pair) + 8 + 12 + 4 + 8) % 32
    pair += struct.pack("<Q", 12) + padding[0] + struct.pack("<IQ", 8, padding[1]) + b"x" * padding[1]
    second.write_bytes(data[:16] + struct.pack("<Q", keys + 2) + pair + data[24:])
    refused(first, f"{second}: general.architecture is not that of {first}")


def test_a_tensor_in_two_parts(tmp_path):
    model = Model(tmp_path, QWEN, Type.Q8_0)
    model.path.unlink()
    model.tensors["blk.0.ffn_gate_twin.weight"] = model.tensors["blk.0.ffn_gate_exps.weight"]
    model.write(2)
    second = sorted(tmp_path.glob("*.gguf"))[1]
    second.write_bytes(second.read_bytes().replace(b"ffn_gate_twin", b"ffn_gate_exps"))
    refused(model.path, f"tensor blk.0.ffn_gate_exps.weight is in two parts of the model, {model.path} and {second}")


def test_a_part_by_its_name_alone(tmp_path):
    path = Model(tmp_path, QWEN, Type.Q8_0, name="model-00001-of-00003").path
    refused(path, "by its name it is part 1 of 3, but it has no split.count")
