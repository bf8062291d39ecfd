"""expertd --verify: reads a model, names NaN, infinite and absurd values, writes and compares digests."""

import struct

import numpy as np
import pytest

from harness.checkpoints import copy_case, read_header
from harness.daemon import run_program
from harness.paths import GOLDENS, SERVED_CASES
from harness.tensors import bf16_bits

NAN, INF = float("nan"), float("inf")
ENCODE = {"F32": lambda value: struct.pack("<f", value), "F16": lambda value: np.float16(value).tobytes(),
          "BF16": lambda value: np.uint16(bf16_bits(np.array([value], np.float32))[0]).tobytes()}


def verify(model, *arguments, status=0, verdict=None):
    done = run_program("expertd", "--verify", "--model", model, *arguments)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == (verdict or ("not sound" if status else "sound"))
    return done.stdout


def unsound(text):
    """{tensor: (file, the counts as text)}."""
    found = {}
    for line in text.splitlines():
        if line.startswith("unsound "):
            name, rest = line.removeprefix("unsound ").split(" in ", 1)
            found[name] = rest.rsplit(": ", 1)
    return found


def patch(folder, tensor, values, raw=None):
    """Overwrites the first elements of a tensor, with values in its dtype or with raw bytes. Returns the file."""
    for file in folder.glob("model*.safetensors"):
        header, start = read_header(file)
        if tensor in header:
            data = bytearray(file.read_bytes())
            at = start + header[tensor]["data_offsets"][0]
            new = raw if raw is not None else b"".join(map(ENCODE[header[tensor]["dtype"]], values))
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


@pytest.mark.parametrize("model", ("synthetic:tiny", "synthetic:tiny,format=mxfp4", "synthetic:tiny,format=fp8_block128"))
def test_generated_weights_are_sound(model):
    assert "4 layers" in verify(model)


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
    ("deepseek_v3_fp8", ("shared_experts.down_proj.weight_scale_inv",), struct.pack("<f", -1e30), "1 absurd (up to 1e+30)"),
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
