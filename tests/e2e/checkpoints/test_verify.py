"""expertd --verify: reads a model, names NaN, infinite and absurd values, odd scales, zeros and copies, writes and compares digests."""

import struct

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from harness.checkpoints import copy_case, read_header
from harness.daemon import run_program
from harness.gguf_models import BLOCKS, QWEN, Model, Spec
from harness.paths import GOLDENS, SERVED_CASES
from harness.quantised import VARIANTS, QuantisedCheckpoint, rounded
from harness.tensors import bf16_bits

NAN, INF = float("nan"), float("inf")
ENCODE = {"F32": lambda value: struct.pack("<f", value), "F16": lambda value: np.float16(value).tobytes(),
          "BF16": lambda value: np.uint16(bf16_bits(np.array([value], np.float32))[0]).tobytes()}


SIZE = {dtype: len(encode(0.0)) for dtype, encode in ENCODE.items()}


def verify(model, *arguments, status=0, verdict=None):
    done = run_program("expertd", "--verify", "--model", model, *arguments)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == (verdict or ("not sound" if status else "sound"))
    return done.stdout


def named(text, word):
    """{tensor: [file, the counts as text, the first place as text]}."""
    found = {}
    for line in text.splitlines():
        if line.startswith(word + " ") and " in " in line:
            name, rest = line.removeprefix(word + " ").split(" in ", 1)
            counts, place = rest.rsplit("; first in ", 1)
            found[name] = [*counts.rsplit(": ", 1), place]
    return found


def unsound(text):
    """{tensor: [file, the counts as text]}."""
    return {name: found[:2] for name, found in named(text, "unsound").items()}


def patch(folder, tensor, values, raw=None, skip=0):
    """Overwrites elements of a tensor after the first `skip`, with values in its dtype or with raw bytes. Returns the file."""
    for file in folder.glob("model*.safetensors"):
        header, start = read_header(file)
        if tensor in header:
            data = bytearray(file.read_bytes())
            dtype = header[tensor]["dtype"]
            new = raw if raw is not None else b"".join(map(ENCODE[dtype], values))
            at = start + header[tensor]["data_offsets"][0] + skip * SIZE.get(dtype, 1)
            data[at:at + len(new)] = new
            file.write_bytes(data)
            return file
    raise AssertionError(f"no tensor {tensor}")


def tensor_of(folder, *parts):
    """The first name that contains all parts."""
    for file in sorted(folder.glob("model*.safetensors")):
        for name in sorted(read_header(file)[0]):
            if all(part in name for part in parts):
                return name
    raise AssertionError(f"no tensor with {parts}")


@pytest.mark.share(4)
@pytest.mark.parametrize("case", SERVED_CASES)
def test_sound_checkpoints_are_sound_and_have_the_ids_of_describe(case, start_daemon):
    text = verify(GOLDENS / case)
    daemon = start_daemon(model=GOLDENS / case, tcp=False, http="off")
    with daemon.client() as client:
        for layer in client.describe().models[0].layers:
            assert f"layer {layer.layer} weights id {layer.weights_id:016x}\n" in text
    assert "doubtful" not in text


@pytest.mark.parametrize("model", ("synthetic:tiny", "synthetic:tiny,format=mxfp4", "synthetic:tiny,format=fp8_block128"))
def test_generated_weights_are_sound(model):
    text = verify(model)
    assert "4 layers" in text and "doubtful" not in text


@pytest.mark.parametrize("variant", VARIANTS)
def test_codes_of_each_quantiser_are_sound(variant, tmp_path):
    assert "doubtful" not in verify(QuantisedCheckpoint(tmp_path / variant, VARIANTS[variant]).folder)


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_blocks_of_llama_cpp_are_sound(kind, tmp_path):
    """Random codes and scales, so that some scales are negative and some are 0."""
    model = Model(tmp_path, Spec("qwen3moe", norm=True, model_type="qwen3_moe"), kind)
    assert "doubtful" not in verify(model.path)


# ---- values


@pytest.mark.parametrize("case, parts", [
    ("mixtral", ("layers.1", "experts.3", "w2")),
    ("mixtral", ("layers.0", "block_sparse_moe.gate")),
    ("qwen2_moe", ("layers.1", "shared_expert.", "up_proj")),
    ("granitemoe_f16", ("layers.", "output_linear")),
    ("gpt_oss", ("layers.", "gate_up_proj_bias")),
    ("qwen3_moe_sharded", ("layers.", "experts.2.", "down_proj")),
    ("llama4", ("layers.", "experts.down_proj")),
])
def test_odd_elements_are_counted_in_their_tensor(case, parts, tmp_path):
    folder = copy_case(case, tmp_path)
    name = tensor_of(folder, *parts)
    file = patch(folder, name, (NAN, INF, -INF, 0.5, NAN, -INF))
    assert unsound(verify(folder, status=65)) == {name: [str(file), "2 NaN, 3 infinite"]}


@pytest.mark.parametrize("case, parts, shape, place", [
    ("mixtral", ("layers.1", "experts.3", "w2"), (64, 48), "layer 1, expert 3, down, row 40, k 7"),
    ("mixtral", ("layers.0", "block_sparse_moe.gate"), (8, 64), "layer 0, row 5, k 9"),
    ("qwen2_moe", ("layers.1", "shared_expert.", "up_proj"), None, "layer 1, up, row 5, k 9"),
    ("llama4", ("layers.", "experts.down_proj"), None, "layer {layer}, expert 1, down, row {row}, k {k}"),  # stored [E, I, H]
])
def test_the_first_place_is_named(case, parts, shape, place, tmp_path):
    folder = copy_case(case, tmp_path)
    name = tensor_of(folder, *parts)
    header, _ = read_header(folder / "model.safetensors")
    dims = header[name]["shape"]
    assert shape is None or tuple(dims) == shape
    index = np.ravel_multi_index((1, 3, 4), dims) if len(dims) == 3 else np.ravel_multi_index(
        (40, 7) if "row 40" in place else (5, 9), dims)
    patch(folder, name, (NAN, 0.0, NAN), skip=int(index))
    layer = name.split("layers.")[1].split(".")[0]
    assert named(verify(folder, status=65), "unsound")[name][2] == place.format(layer=layer, row=4, k=3)


def test_absurd_elements_are_counted(tmp_path):
    folder = copy_case("mixtral", tmp_path)
    name = tensor_of(folder, "experts.0.w1")
    patch(folder, name, (1e6, -3e20, 2e6))
    (_, counts), = unsound(verify(folder, status=65)).values()
    assert counts.startswith("2 absurd (up to 3e+20)"), "2^20 is between 1e6 and 2e6"


def test_all_experts_of_one_tensor_are_counted_together(tmp_path):
    folder = copy_case("gpt_oss", tmp_path)
    name = tensor_of(folder, "experts.down_proj_bias")
    header, _ = read_header(folder / "model.safetensors")
    experts, width = header[name]["shape"]
    patch(folder, name, [NAN] * experts * width)
    assert unsound(verify(folder, status=65))[name][1] == f"{experts * width} NaN"


@pytest.mark.parametrize("case, parts, raw, counts", [
    ("deepseek_v3_fp8", ("experts.1.up_proj.weight",), b"\x7f\xff\x00\x7e", "2 NaN"),
    ("deepseek_v3_fp8", ("experts.1.up_proj.weight_scale_inv",), struct.pack("<f", NAN), "1 NaN"),
    ("deepseek_v3_fp8", ("shared_experts.down_proj.weight_scale_inv",), struct.pack("<f", 1e30), "1 absurd (up to 1e+30)"),
    ("gpt_oss_mxfp4", ("down_proj_scales",), b"\xff\x7f\xff", "2 NaN"),
    ("gpt_oss_mxfp4", ("gate_up_proj_scales",), b"\xf0", "1 absurd (up to 1.04e+34)"),
    ("kimi_k2_int4", ("experts.0.", "weight_scale"), bf16_bits(np.array([INF], np.float32)).astype("<u2").tobytes(), "1 infinite"),
    ("mixtral_awq", ("experts.0.w1.scales",), np.float16(INF).tobytes(), "1 infinite"),
])
def test_odd_codes_and_scales_are_counted_in_their_tensor(case, parts, raw, counts, tmp_path):
    folder = copy_case(case, tmp_path)
    name = next(n for n in sorted(read_header(folder / "model.safetensors")[0]) if all(p in n for p in parts)
                and (n.endswith(parts[-1]) or len(parts) > 1))
    file = patch(folder, name, (), raw)
    assert unsound(verify(folder, status=65)) == {name: [str(file), counts]}


# ---- scales that no quantiser writes

GATE = "model.layers.0.mlp.experts.1.gate_proj"
NEGATIVE, ZERO, TINY = "negative", "zero over codes that are not 0", "tiny"
BECAME_0 = "underflowed to 0 over codes that are not 0"


def quantised(tmp_path, variant):
    return QuantisedCheckpoint(tmp_path / variant, VARIANTS[variant])


def put(checkpoint, suffix, value, *index):
    """Sets scales of one matrix, in the stored dtype, and writes the checkpoint."""
    dtype, array = checkpoint.tensors[GATE + suffix]
    array = np.array(array, copy=True)
    array[index if index else ...] = np.ravel(rounded(np.array([value]), dtype)[0])[0]
    checkpoint.tensors[GATE + suffix] = (dtype, array)
    checkpoint.write()


# (variant, suffix, value, index; nothing: all), words of the counts, the first place. Signs and zeros as each quantiser's code has them.
SCALES = {
    "fp8_negative": ("fp8_blocks", ".weight_scale_inv", -0.01, (1, 0), f"1 {NEGATIVE}", "row 128, group 0"),
    "fp8_zero": ("fp8_blocks", ".weight_scale_inv", 0.0, (0, 1), f"1 {ZERO}", "row 0, group 1"),
    "fp8_rows_negative": ("compressed_fp8_per_row", ".weight_scale", -0.01, (7,), f"1 {NEGATIVE}", "row 7, group 0"),
    "nvfp4_negative": ("modelopt_nvfp4", ".weight_scale", -1.0, (3, 2), f"1 {NEGATIVE}", "row 3, group 2"),
    "nvfp4_global_negative": ("modelopt_nvfp4", ".weight_scale_2", -1.0, (), f"1 {NEGATIVE}", None),
    "nvfp4_global_zero": ("modelopt_nvfp4", ".weight_scale_2", 0.0, (), f"1 {ZERO}", None),
    "nvfp4_all_zero": ("modelopt_nvfp4", ".weight_scale", 0.0, (), f"{160 * 12} {ZERO}", "row 0, group 0"),
    "int4_zero": ("compressed_int4", ".weight_scale", 0.0, (2, 5), f"1 {ZERO}", "row 2, group 5"),
    "int8_zero": ("compressed_w8a8", ".weight_scale", 0.0, (9,), f"1 {ZERO}", "row 9, group 0"),
    "awq_half_zero": ("awq", ".scales", 0.0, (slice(0, 4),), f"{4 * 160} {ZERO}", "row 0, group 0"),
}
DOUBTFUL = {
    "nvfp4_one_zero": ("modelopt_nvfp4", ".weight_scale", 0.0, (5, 1), f"1 {BECAME_0}", "row 5, group 1"),
    "awq_one_zero": ("awq", ".scales", 0.0, (2, 11), f"1 {BECAME_0}", "row 11, group 2"),
    "gptq_one_zero": ("gptq", ".scales", 0.0, (1, 4), f"1 {BECAME_0}", "row 4, group 1"),
    "fp8_tiny": ("fp8_blocks", ".weight_scale_inv", 1e-30, (1, 1), f"1 {TINY} (down to 1e-30)", "row 128, group 1"),
    "int8_tiny": ("compressed_w8a8", ".weight_scale", -1e-38, (0,), f"1 {TINY} (down to 1e-38)", "row 0, group 0"),
}
# AutoRound gives the greatest value of a group the code -8, so that its scales have both signs.
SOUND = {
    "gptq_negative": ("gptq", ".scales", -0.01, (1, 4)),
    "awq_negative": ("awq", ".scales", -0.01, (1, 4)),
    "int4_negative": ("compressed_int4", ".weight_scale", -0.01, (2, 5)),
    "int8_negative": ("compressed_w8a8", ".weight_scale", -0.01, (2,)),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales_that_no_quantiser_writes_are_unsound(name, tmp_path):
    variant, suffix, value, index, counts, place = SCALES[name]
    checkpoint = quantised(tmp_path, variant)
    put(checkpoint, suffix, value, *index)
    text = verify(checkpoint.folder, status=65)
    where = "layer 0, expert 1, gate" + (f", {place}" if place else "")
    assert named(text, "unsound") == {GATE + suffix: [str(checkpoint.folder / "model.safetensors"), counts, where]}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_scales_that_sound_files_may_have_are_doubtful(name, tmp_path):
    variant, suffix, value, index, counts, place = DOUBTFUL[name]
    checkpoint = quantised(tmp_path, variant)
    put(checkpoint, suffix, value, *index)
    text = verify(checkpoint.folder)
    assert named(text, "doubtful") == {GATE + suffix: [str(checkpoint.folder / "model.safetensors"), counts,
                                                       f"layer 0, expert 1, gate, {place}"]}


@pytest.mark.parametrize("name", SOUND)
def test_negative_scales_of_integers_are_sound(name, tmp_path):
    variant, suffix, value, index = SOUND[name]
    checkpoint = quantised(tmp_path, variant)
    put(checkpoint, suffix, value, *index)
    assert "doubtful" not in verify(checkpoint.folder)


@pytest.mark.parametrize("variant, codes, zero, scale", [
    ("fp8_blocks", ".weight", 0, ".weight_scale_inv"),
    ("modelopt_nvfp4", ".weight", 0, ".weight_scale"),
    ("compressed_int4", ".weight_packed", -2004318072, ".weight_scale"),  # 0x88888888: eight codes of 8, the zero point
])
def test_zero_scales_over_zero_codes_are_sound(variant, codes, zero, scale, tmp_path):
    checkpoint = quantised(tmp_path, variant)
    dtype, array = checkpoint.tensors[GATE + codes]
    array = np.array(array, copy=True)
    array[:, :array.shape[1] // 2] = zero  # the other half keeps the matrix from being zero
    checkpoint.tensors[GATE + codes] = (dtype, array)
    if variant == "fp8_blocks":  # blocks of 128 k: 96 k are half a row, so that all of it is cleared
        array[:128, :128] = zero
        put(checkpoint, scale, 0.0, 0, 0)
    else:
        put(checkpoint, scale, 0.0, 3, 1)
    assert "doubtful" not in verify(checkpoint.folder)


def test_a_global_scale_of_zero_over_zero_codes_is_no_scale(tmp_path):
    """ModelOpt divides the greatest magnitude of the matrix, which is 0."""
    checkpoint = quantised(tmp_path, "modelopt_nvfp4")
    dtype, array = checkpoint.tensors[GATE + ".weight"]
    checkpoint.tensors[GATE + ".weight"] = (dtype, np.zeros_like(array))
    put(checkpoint, ".weight_scale_2", 0.0)
    text = verify(checkpoint.folder)
    assert named(text, "doubtful")[GATE + ".weight"][1] == "all zeros in 1 matrix" and not named(text, "unsound")


# ---- zeros and copies


@pytest.mark.parametrize("case, parts, count, place", [
    ("mixtral", ("layers.1", "experts.3", "w2"), None, "layer 1, expert 3, down"),
    ("llama4", ("experts.down_proj",), 2, "expert 1, down"),
])
def test_matrices_of_zeros_are_doubtful(case, parts, count, place, tmp_path, start_daemon):
    """count: of consecutive experts of a stacked tensor, from the second on. A start warns."""
    folder = copy_case(case, tmp_path)
    name = tensor_of(folder, *parts)
    header, _ = read_header(folder / "model.safetensors")
    size = int(np.prod(header[name]["shape"][-2:]))
    file = patch(folder, name, [0.0] * size * (count or 1), skip=size if count else 0)
    found = named(verify(folder), "doubtful")[name]
    assert found[1] == (f"all zeros in {count} matrices" if count else "all zeros in 1 matrix") and found[2].endswith(place)
    (warned,) = start_daemon(model=folder).events("matrices_of_zeros")
    assert (warned["level"], warned["count"], warned["tensor"], warned["file"]) == ("warning", str(count or 1), name, str(file))


def test_one_byte_makes_no_matrix_of_zeros(tmp_path, start_daemon):
    folder = copy_case("mixtral", tmp_path)
    name = tensor_of(folder, "experts.3.w2")
    header, _ = read_header(folder / "model.safetensors")
    size = int(np.prod(header[name]["shape"]))
    patch(folder, name, [0.0] * (size - 1))
    assert "doubtful" not in verify(folder)
    assert start_daemon(model=folder).events("matrices_of_zeros") == []


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.IQ4_XS, Type.Q6_K, Type.BF16], ids=lambda kind: kind.name)
def test_a_gguf_file_whose_end_never_came(kind, tmp_path, start_daemon):
    """Its space was reserved, so that its size is right. The types with minima and with tables of codes among them."""
    model = Model(tmp_path, QWEN, kind)
    raw, _ = model.tensors["blk.0.ffn_up_exps.weight"]
    data, experts = model.path.read_bytes(), len(raw)
    first = data.index(raw.tobytes()) + raw.nbytes // experts * 5 - 7  # the last bytes of expert 4 too
    model.path.write_bytes(data[:first] + bytes(len(data) - first))
    found = named(verify(model.path), "doubtful")
    assert found["blk.0.ffn_up_exps.weight"] == [str(model.path), "all zeros in 3 matrices", "layer 0, expert 5, up"]
    assert found["blk.0.ffn_down_exps.weight"] == [str(model.path), "all zeros in 8 matrices", "layer 0, expert 0, down"]
    (warned,) = start_daemon(model=model.path).events("matrices_of_zeros")
    assert (warned["count"], warned["tensor"]) == ("12", "blk.0.ffn_down_exps.weight"), "with the router"


@pytest.mark.parametrize("variant, codes, zero", [("fp8_blocks", ".weight", 0x80), ("gptq_symmetric_with_bias", ".qweight", -2004318072),
                                                  ("compressed_w8a8", ".weight", 0)])
def test_codes_of_zero_are_matrices_of_zeros(variant, codes, zero, tmp_path):
    checkpoint = quantised(tmp_path, variant)
    dtype, array = checkpoint.tensors[GATE + codes]
    checkpoint.tensors[GATE + codes] = (dtype, np.full_like(array, zero))
    checkpoint.write()
    assert named(verify(checkpoint.folder), "doubtful")[GATE + codes][1:] == ["all zeros in 1 matrix", "layer 0, expert 1, gate"]


def test_biases_and_routers_may_be_zero(tmp_path):
    folder = copy_case("gpt_oss", tmp_path)
    for part in ("experts.down_proj_bias", "router.bias"):
        name = tensor_of(folder, part)
        header, _ = read_header(folder / "model.safetensors")
        patch(folder, name, [0.0] * int(np.prod(header[name]["shape"])))
    assert "doubtful" not in verify(folder)


def test_experts_with_equal_weights_are_named(tmp_path):
    folder = copy_case("mixtral", tmp_path)
    file = folder / "model.safetensors"
    header, start = read_header(file)
    data = bytearray(file.read_bytes())
    for source, targets in (((0, 2), [(0, 5), (1, 0)]), ((1, 6), [(1, 7)])):
        for part in ("w1", "w2", "w3"):
            name = "model.layers.{}.block_sparse_moe.experts.{}.{}.weight"
            begin, end = header[name.format(*source, part)]["data_offsets"]
            for target in targets:
                to = header[name.format(*target, part)]["data_offsets"][0]
                data[start + to:start + to + end - begin] = data[start + begin:start + end]
    file.write_bytes(data)
    assert {line for line in verify(folder).splitlines() if line.startswith("doubtful")} == {
        "doubtful layer 0 expert 2: all its weights are those of layer 0 expert 5, and of 1 more",
        "doubtful layer 1 expert 6: all its weights are those of layer 1 expert 7"}


def test_a_refused_model_is_refused_as_at_a_start(tmp_path):
    folder = copy_case("mixtral", tmp_path)
    (folder / "model.safetensors").unlink()
    done = run_program("expertd", "--verify", "--model", folder)
    assert done.returncode == 65 and "model.safetensors" in done.stderr and done.stdout == ""


def test_a_model_larger_than_memory_is_verified():
    model, limit = "synthetic:tiny,layers=4", ("--memory-max", "6MiB")
    assert run_program("expertd", "--model", model, *limit, "--listen", "127.0.0.1:0", "--http", "off").returncode == 69
    verify(model, *limit, "--threads", 2)


# ---- digests


@pytest.fixture
def folder(tmp_path):
    return copy_case("mixtral", tmp_path)


@pytest.fixture
def digests(folder, tmp_path):
    path = tmp_path / "digests"
    verify(folder, "--digests", path)
    return path


def test_equal_weights_have_equal_digests(folder, digests):
    before = digests.read_text()
    assert before.startswith("expertd digests 1\nlayer 0 expert 0 ") and before.count("expert ") == 16
    for options in ((), ("--shards", 2), ("--widen",), ("--threads", 1), ("--layers", "1-1")):
        assert "equal to" in verify(folder, "--compare-digests", digests, *options)
    verify(folder, "--compare-digests", digests, "--digests", digests)
    assert digests.read_text() == before


def test_differing_experts_are_named(folder, digests):
    name = tensor_of(folder, "layers.1", "experts.5", "w3")
    patch(folder, name, (0.125,))
    text = verify(folder, "--compare-digests", digests, status=65, verdict="different")
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("differs ")] == [
        "differs layer 1 expert 5", "differs layer 1"]
    verify(folder, "--compare-digests", digests, "--layers", "0-0")


def test_a_differing_router_changes_its_layer_alone(folder, digests):
    patch(folder, tensor_of(folder, "layers.0", "gate"), (0.125,))
    text = verify(folder, "--compare-digests", digests, status=65, verdict="different")
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("differs ")] == ["differs layer 0"]


def test_unsound_values_outweigh_other_digests(folder, digests):
    patch(folder, tensor_of(folder, "layers.1", "experts.5", "w3"), (NAN,))
    assert "digests differ from" in verify(folder, "--compare-digests", digests, status=65, verdict="not sound")


def test_missing_layers_differ(folder, digests, tmp_path):
    one = tmp_path / "one"
    verify(folder, "--digests", one, "--layers", "0-0")
    text = verify(folder, "--compare-digests", one, status=65, verdict="different")
    assert text.count("only here") == 9 and "differs layer 1: only here" in text
    digests.write_text(digests.read_text() + "layer 7 0123456789abcdef\n")
    assert "differs layer 7: only in the file" in verify(folder, "--compare-digests", digests, status=65, verdict="different")


@pytest.mark.parametrize("damage, named", [
    (lambda text: "", "line 1"),
    (lambda text: text.replace("digests 1", "digests 2"), "line 1"),
    (lambda text: text.replace("layer 0 expert 1 ", "layer 0 expert x "), "line 3"),
    (lambda text: text[:-2], "line"),
    (lambda text: text.replace("layer 0 expert 1 ", "layer 99999999999 expert 1 "), "line 3"),
])
def test_a_damaged_file_of_digests_is_refused(damage, named, folder, digests):
    digests.write_text(damage(digests.read_text()))
    done = run_program("expertd", "--verify", "--model", folder, "--compare-digests", digests)
    assert done.returncode == 65 and named in done.stderr and str(digests) in done.stderr


def test_files_of_digests_that_cannot_be_read_or_written_are_named(folder, tmp_path):
    none = tmp_path / "none" / "digests"
    for flag, status in (("--digests", 69), ("--compare-digests", 65)):
        done = run_program("expertd", "--verify", "--model", folder, flag, none)
        assert done.returncode == status and flag in done.stderr and str(none) in done.stderr, done.stderr


def test_faults_of_digest_files_are_found_before_the_load(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    for flag in ("--digests", "--compare-digests"):
        done = run_program("expertd", "--verify", "--model", folder, flag, tmp_path / "none" / "digests")
        assert flag in done.stderr and "model.safetensors" not in done.stderr
    done = run_program("expertd", "--verify", "--model", folder, "--digests", tmp_path / "digests")
    assert "model.safetensors" in done.stderr and not (tmp_path / "digests").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["mixtral"], "a temporary file is left"


def test_digests_go_to_a_pipe(folder):
    done = run_program("expertd", "--verify", "--model", folder, "--digests", "/dev/stdout")
    assert done.returncode == 0 and "layer 1 expert 7 " in done.stdout


@pytest.mark.parametrize("arguments, named", [(("--digests", "x"), "--verify"), (("--compare-digests", "x"), "--verify")])
def test_wrong_command_lines(arguments, named):
    done = run_program("expertd", "--model", "synthetic:tiny", *arguments)
    assert done.returncode == 64 and named in done.stderr
