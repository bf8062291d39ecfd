"""Damaged and inconsistent checkpoints: exit 65 at once with the file and the tensor; never a crash, a hang or a large allocation."""

import json
import os
import resource
import signal
import struct
import subprocess
import time

import pytest

from harness.checkpoints import copy_case, rewrite_header
from harness.daemon import SANITIZER_SIGNS, clean_environment, run_program
from harness.paths import BIN, SANITIZER, SLOW

EXPERT = "model.layers.0.block_sparse_moe.experts.1.w1.weight"
GATE = "model.layers.0.block_sparse_moe.gate.weight"
# Limits for "at once". CPU time does not depend on other load; wall time only detects a hang.
CPU_SECONDS, WALL_SECONDS = 1.0 * SLOW, 10.0 * SLOW
RSS_MAX = 150 << 20


def load(folder):
    """Tries to serve a folder. Returns (exit status, standard error, CPU seconds, peak resident bytes)."""
    process = subprocess.Popen([str(BIN / "expertd"), "--model", str(folder), "--listen", "127.0.0.1:0", "--http", "off"],
                               env=clean_environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               errors="replace")
    try:
        text = process.stderr.read() if wait(process, WALL_SECONDS) else "(it hangs, or serves)"
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        process.stderr.close()
    return process.returncode, text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def wait(process, seconds):
    """Waits for the end of the process without reaping it. Kills it after `seconds`."""
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            process.kill()
            return False
        time.sleep(0.005)
    return True


def refused(folder, *named, status=65):
    code, text, seconds, rss = load(folder)
    assert code == status, f"exit {code}\n{text}"
    assert not any(sign in text for sign in SANITIZER_SIGNS), text
    for name in named:
        assert name in text, f"{name!r} is not named in\n{text}"
    assert seconds < CPU_SECONDS, f"{seconds:.2f} s"
    if not SANITIZER:
        # After fork, Linux's peak includes that of this Python process, so that one is the baseline.
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert rss < max(RSS_MAX, own + (16 << 20)), f"peak of {rss >> 20} MiB; this process: {own >> 20} MiB"


@pytest.fixture
def folder(tmp_path):
    return copy_case("mixtral", tmp_path)


@pytest.fixture
def sharded(tmp_path):
    return copy_case("qwen3_moe_sharded", tmp_path)



@pytest.mark.parametrize("name, logged", ((b"mo\xffdel", r"mo\\xffdel"), (b"mo\x1bdel", r"mo\\x1bdel"),
                                          (b"mo\xc2\x9bdel", r"mo\\xc2\\x9bdel")))
def test_a_folder_with_an_unprintable_name_is_refused_through_links_too(folder, tmp_path, name, logged):
    """The folder's name is the model's name in messages, labels and log lines."""
    os.rename(folder, os.path.join(os.fsencode(tmp_path), name))
    link = tmp_path / "link"
    link.symlink_to(os.fsdecode(name))
    refused(link, logged, "rename it", status=78)


def change_entry(**changes):
    def change(header):
        header[EXPERT].update(changes)
        return header

    return change


def shift(name, begin=0, end=0):
    def change(header):
        offsets = header[name]["data_offsets"]
        header[name]["data_offsets"] = [offsets[0] + begin, offsets[1] + end]
        return header

    return change


def as_text(change):
    """A change of the header's text, for JSON that a dict cannot express."""
    return lambda header: change(json.dumps(header)).encode()


def deep(header):
    header["__metadata__"] = "DEEP"
    return json.dumps(header).replace('"DEEP"', "[" * 100000 + "]" * 100000).encode()


HEADERS = {
    "gap": (shift(EXPERT, begin=2), EXPERT),
    "overlap": (shift(EXPERT, begin=-2), None),
    "end_before_begin": (change_entry(data_offsets=[100, 50]), EXPERT),
    "end_past_the_file": (change_entry(data_offsets=[0, 1 << 50]), None),
    "offset_past_64_bits": (as_text(lambda t: t.replace('"data_offsets": [0,', '"data_offsets": [36893488147419103232,', 1)), None),
    "negative_offset": (as_text(lambda t: t.replace('"data_offsets": [0,', '"data_offsets": [-1,', 1)), None),
    "offset_with_a_fraction": (as_text(lambda t: t.replace('"data_offsets": [0,', '"data_offsets": [0.5,', 1)), None),
    "offset_in_float_notation": (as_text(lambda t: t.replace('"data_offsets": [0,', '"data_offsets": [0.0,', 1)), None),
    "three_offsets": (change_entry(data_offsets=[0, 1, 2]), f"{EXPERT}: data_offsets is [0, 1, 2]: expected two integers"),
    "no_offsets": (change_entry(data_offsets=None), f"{EXPERT}: data_offsets is null: expected two integers"),
    "size_is_not_shape_times_dtype": (change_entry(shape=[47, 64]), EXPERT),
    "shape_product_overflows": (change_entry(shape=[1 << 33, 1 << 33]), EXPERT),
    "shape_bits_overflow": (change_entry(shape=[1 << 62]), EXPERT),
    "negative_dimension": (change_entry(shape=[-48, -64]), EXPERT),
    "dimension_is_a_text": (change_entry(shape=["48", "64"]), f"{EXPERT}: shape is [\\\"48\\\", \\\"64\\\"]: expected a list"),
    "dimension_is_a_fraction": (change_entry(shape=[48.5, 64]), f"{EXPERT}: shape is [48.5, 64]: expected a list of up to 8 integers"),
    "shape_is_no_list": (change_entry(shape=3072), f"{EXPERT}: shape is 3072: expected a list of up to 8 integers"),
    "rank_is_absurd": (change_entry(shape=[1] * 2000), EXPERT),
    "unknown_dtype": (change_entry(dtype="BF17"), EXPERT),
    "dtype_is_a_number": (change_entry(dtype=16), f"{EXPERT}: dtype is 16: expected the name of a dtype"),
    "entry_is_a_list": (lambda header: {**header, EXPERT: [1, 2]}, f"{EXPERT}: the entry is [1, 2]: expected an object"),
    "header_is_a_list": (lambda header: b"[]", None),
    "header_is_a_text": (lambda header: b'"header"', None),
    "header_is_empty": (lambda header: b"", None),
    "not_json": (as_text(lambda t: t[:-5]), None),
    "json_and_more": (as_text(lambda t: t + "{}"), None),
    "bare_nan": (as_text(lambda t: t.replace('"data_offsets": [0,', '"data_offsets": [NaN,', 1)), None),
    "bad_utf8": (lambda header: json.dumps(header).encode().replace(b"block_sparse", b"block\xff\xfe\xfdparse", 1), None),
    "nul_in_a_name": (as_text(lambda t: t.replace("block_sparse_moe.gate", "block_sparse_moe\\u0000gate", 1)), None),
    "key_twice": (as_text(lambda t: t[:-1] + f', "{EXPERT}": ' + json.dumps({"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}) + "}"),
                  EXPERT),
    "metadata_is_no_map_of_texts": (lambda header: {**header, "__metadata__": {"a": 1}}, "__metadata__: a is 1: expected a string"),
    "deeply_nested": (deep, None),
    "name_is_absurdly_long": (lambda header: {**header, "x" * 100000: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, None),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_breaks_a_rule_is_refused(folder, name):
    change, tensor = HEADERS[name]
    rewrite_header(folder / "model.safetensors", change)
    refused(folder, "model.safetensors", "download it again", *([tensor] if tensor else []))


@pytest.mark.parametrize("stated", ("nvfp4", "mxfp8", "float8_e4m3fn"))
def test_comfyuis_other_order_of_codes_is_refused(folder, start_daemon, stated):
    """It stands in the header alone: names, dtypes and shapes are those of other programs."""
    metadata = {"_quantization_metadata": json.dumps({"layers": {"mlp": {"format": stated}}})}
    rewrite_header(folder / "model.safetensors", lambda header: {**header, "__metadata__": metadata})
    if stated.startswith("float8"):
        start_daemon(model=folder)
    else:
        refused(folder, "model.safetensors", "_quantization_metadata", stated, "ComfyUI")


def header_length(length):
    return lambda data: struct.pack("<Q", length) + data[8:]


FILES = {
    "empty": lambda data: b"",
    "seven_bytes": lambda data: data[:7],
    "only_a_length": lambda data: data[:8],
    "cut_in_the_header": lambda data: data[:100],
    "cut_in_the_data": lambda data: data[:-1],
    "bytes_after_the_end": lambda data: data + b"\0",
    "length_of_100_megabytes": header_length(100_000_000),
    "length_past_the_limit": header_length(100_000_001),
    "length_of_all_ones": header_length((1 << 64) - 1),
    "length_wraps": header_length((1 << 64) - 8),
    "length_past_the_file": lambda data: header_length(len(data) - 7)(data),
    "noise": lambda data: os.urandom(4096),
    "a_pickle": lambda data: b"PK\x03\x04" + data,
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_safetensors_is_refused(folder, name):
    file = folder / "model.safetensors"
    file.write_bytes(FILES[name](file.read_bytes()))
    refused(folder, "model.safetensors")


def test_a_large_header_of_spaces_allocates_nothing(folder):
    """A valid header length in a sparse file."""
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(8 + 99_999_999)
        file.write(struct.pack("<Q", 99_999_999))
    refused(folder, "model.safetensors")


def test_a_fifo_is_refused_without_waiting(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    refused(folder, "model.safetensors")


def test_a_device_or_a_folder_is_refused(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")
    refused(folder, "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    refused(folder, "model.safetensors")


def test_a_link_to_a_regular_file_is_read(folder, start_daemon, tmp_path):
    """As in a snapshot of the hub's cache."""
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    start_daemon(model=folder)


@pytest.mark.parametrize("name", ("model.safetensors", "config.json"))
def test_a_dangling_or_circular_link_is_refused(folder, name):
    """Exit 65, not a status that suggests another try."""
    for target, word in (("absent", "target of this link"), (name, "Too many levels")):
        (folder / name).unlink()
        (folder / name).symlink_to(target)
        refused(folder, name, word)


def test_missing_files_are_named(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "other.bin")
    refused(folder, "model.safetensors")
    (folder / "other.bin").rename(folder / "model.safetensors")
    (folder / "config.json").unlink()
    refused(folder, "config.json")
    refused(tmp_path / "nowhere", "nowhere")


CONFIGS = {
    "not_json": (lambda text: text[:-3], None),
    "empty": (lambda text: "", None),
    "a_list": (lambda text: "[]", None),
    "model_type_unknown": (lambda text: text.replace('"mixtral"', '"mistletoe"').replace("MixtralFor", "MistletoeFor"), "mistletoe"),
    "experts_are_wrong": (lambda text: text.replace('"num_local_experts": 8', '"num_local_experts": 9'), "num_local_experts 9"),
    "experts_huge": (lambda text: text.replace('"num_local_experts": 8', '"num_local_experts": 4000000000'), "num_local_experts is 4000000000: expected an integer from 1 to"),
    "experts_negative": (lambda text: text.replace('"num_local_experts": 8', '"num_local_experts": -8'), "num_local_experts"),
    "experts_text": (lambda text: text.replace('"num_local_experts": 8', '"num_local_experts": "8"'), "num_local_experts"),
    "experts_disagree": (lambda text: text.replace('"num_local_experts": 8', '"num_local_experts": 8, "num_experts": 6'), "num_experts"),
    "top_k_of_one_layer": (lambda text: text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 2, "per_layer_config": '
                                                     '{"00": {"num_experts_per_tok": 1}}'), "per_layer_config.00"),
    "layer_no_number": (lambda text: text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 2, "per_layer_config": '
                                                  '{"first": {}}'), "first"),
    "top_k_zero": (lambda text: text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 0'), "num_experts_per_tok"),
    "top_k_past_the_experts": (lambda text: text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 9'), "num_experts_per_tok 9"),
    "experts_missing": (lambda text: text.replace('"num_local_experts": 8,', ''), "num_experts is missing"),
    "experts_by_layer": (lambda text: text.replace('"num_local_experts": 8', '"num_local_experts": [8, 0]'), "num_local_experts[1] is 0"),
    "no_layers": (lambda text: text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 0'), "num_hidden_layers is 0: expected an integer from 1 to"),
    "more_layers": (lambda text: text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'), "num_hidden_layers 3"),
    "a_dense_layer": (lambda text: text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 2, "mlp_layer_types": ["dense", "moe"]'),
                      "mlp_layer_types"),
    "hidden_size_is_wrong": (lambda text: text.replace('"hidden_size": 64', '"hidden_size": 65'), "hidden_size 65"),
    "width_is_wrong": (lambda text: text.replace('"intermediate_size": 48', '"intermediate_size": 40'), "intermediate_size 40"),
    "activation_unknown": (lambda text: text.replace('"silu"', '"snake"'), "snake"),
    "key_twice": (lambda text: text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 2, "num_experts_per_tok": 3'), None),
    "deeply_nested": (lambda text: text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 2, "x": ' + "[" * 99999 + "]" * 99999), None),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_does_not_fit_is_refused(folder, name):
    change, named = CONFIGS[name]
    file = folder / "config.json"
    text = file.read_text()
    changed = change(text)
    assert changed != text
    file.write_text(changed)
    refused(folder, *([named] if named else ["config.json"] if name in ("not_json", "empty", "a_list") else []))


@pytest.mark.parametrize("key, value, named", (("num_experts", 0, "text_config.num_experts is 0: expected an integer from 1 to"),
                                               ("num_experts_per_tok", 100, "text_config.num_experts_per_tok 100"),
                                               ("moe_intermediate_size", "x", "text_config.moe_intermediate_size is x: expected an integer"),
                                               ("hidden_size", None, "text_config.hidden_size is null")))
def test_a_key_of_a_nested_model_is_named_with_its_path(tmp_path, key, value, named):
    folder = copy_case("qwen3_5_moe", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"][key] = value
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, named)


def test_a_shared_expert_that_the_config_does_not_have_is_named_with_its_key(tmp_path):
    folder = copy_case("deepseek_v3", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["n_shared_experts"] = 0
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "mlp.shared_experts.", "n_shared_experts 0", "has no shared expert")


def test_overrides_of_attention_keys_are_accepted(folder, start_daemon):
    file = folder / "config.json"
    text = file.read_text()
    file.write_text(text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 2, "per_layer_config": '
                                                             '{"0": {"num_attention_heads": 2, "num_experts_per_tok": 2}}'))
    start_daemon(model=folder)


def test_bare_infinity_and_nan_in_a_config_are_read(folder, start_daemon):
    file = folder / "config.json"
    text = file.read_text()
    file.write_text(text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 2, "a": [Infinity, -Infinity, NaN]'))
    start_daemon(model=folder)


def rename(old, new):
    def change(header):
        return {new if name == old else name: entry for name, entry in header.items()}

    return change


def test_an_expert_that_is_missing_is_named(folder):
    rewrite_header(folder / "model.safetensors", rename(EXPERT, "model.layers.0.unknown.weight"))
    refused(folder, EXPERT)


def test_a_router_that_is_missing_is_named(folder):
    rewrite_header(folder / "model.safetensors", rename(GATE, "model.layers.0.unknown.weight"))
    refused(folder, "model.layers.0")


def test_an_expert_of_another_shape_is_named(folder):
    rewrite_header(folder / "model.safetensors", change_entry(shape=[64, 48]))
    refused(folder, EXPERT)


def test_an_expert_of_integers_is_named(folder):
    rewrite_header(folder / "model.safetensors", change_entry(dtype="I16"))
    refused(folder, EXPERT)


def change_index(folder, change):
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index = change(index) or index
    file.write_text(index if isinstance(index, str) else json.dumps(index))


def first_expert(index):
    return next(name for name in index["weight_map"] if ".experts." in name)


def point(value):
    def change(index):
        index["weight_map"][first_expert(index)] = value

    return change


INDEXES = {
    "not_json": (lambda index: json.dumps(index)[:-4], None),
    "no_weight_map": (lambda index: {"metadata": {}}, "weight_map is missing: expected an object"),
    "weight_map_is_a_list": (lambda index: {"weight_map": [1, 2]}, "weight_map is [1, 2]: expected an object"),
    "the_top_is_a_list": (lambda index: "[]", "it is []: expected an object with weight_map"),
    "a_number": (point(3), "weight_map: model.layers.0.mlp.experts.0.down_proj.weight is 3: expected the name of a file"),
    "a_null": (point(None), "down_proj.weight is null: expected the name of a file"),
    "an_object": (point({"file": 1}), "is {\\\"file\\\": 1}: expected the name of a file"),
    "a_page": (lambda index: "<!DOCTYPE html>", "it is an HTML page, not the file itself: download it again"),
    "up_and_out": (point("../model.safetensors"), "../"),
    "absolute": (point("/etc/passwd"), "/etc/passwd"),
    "a_folder_below": (point("sub/model.safetensors"), "sub/"),
    "dots": (point(".."), None),
    "empty_name": (point(""), None),
    "file_that_is_not_there": (point("model-00009-of-00003.safetensors"), "model-00009-of-00003.safetensors"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_invalid_index_is_refused(sharded, name):
    change, named = INDEXES[name]
    change_index(sharded, change)
    refused(sharded, *([named] if named else ["index"]))


def test_one_file_under_many_names_costs_no_more_than_one(sharded):
    """Forty links to a header of 16 MB, which would need 1.5 GB if each were parsed."""
    tensor = lambda i: f"model.layers.{i % 2}.mlp.experts.0.t{i}"
    header = "{" + ",".join(f'"{tensor(i)}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(200000)) + "}"
    (sharded / "a00.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    names = [f"a{i:02}.safetensors" for i in range(40)]
    for name in names[1:]:
        (sharded / name).symlink_to(names[0])
    index = {"weight_map": {tensor(i): file for i, file in enumerate(names)}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(sharded, names[0], "links to one file")


def test_a_tensor_that_is_not_in_its_file_is_named(sharded):
    def change(index):
        name = first_expert(index)
        here = index["weight_map"][name]
        index["weight_map"][name] = next(file for file in index["weight_map"].values() if file != here)

    change_index(sharded, change)
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    refused(sharded, first_expert(index))


def test_a_wrong_total_size_is_ignored(sharded, start_daemon):
    change_index(sharded, lambda index: index.setdefault("metadata", {}).update(total_size=1 << 62))
    start_daemon(model=sharded)


@pytest.mark.parametrize("name", ("RLIMIT_AS", "RLIMIT_DATA"))
def test_a_limit_of_the_process_on_memory_is_named_before_the_load(name):
    if SANITIZER:
        pytest.skip("the sanitizers reserve terabytes of address space")
    done = subprocess.run([str(BIN / "expertd"), "--model", "synthetic:olmoe-1b-7b,layers=3", "--listen", "127.0.0.1:0", "--http",
                           "off"], env=clean_environment(), capture_output=True, text=True, timeout=30 * SLOW,
                          preexec_fn=lambda: resource.setrlimit(getattr(resource, name), (3 << 29, 3 << 29)))
    assert done.returncode == 69, done.stderr
    assert f"is available ({name} of this process; raise it with ulimit" in done.stderr, done.stderr


def test_a_file_that_is_written_during_the_load_is_refused(tmp_path):
    """Not made shorter: the bytes of some tensors change while others are read. A stopped process gives the time for it."""
    model = tmp_path / "model"
    run_program("make-checkpoint", str(model), "--hidden", "512", "--width", "512", "--experts", "32", "--layers", "2")
    weights = model / "model.safetensors"
    with subprocess.Popen([str(BIN / "expertd"), "--model", str(model), "--listen", f"unix:{tmp_path}/s.sock", "--http", "off", "--admin",
                           "off", "--threads", "1"], env=clean_environment(), stderr=subprocess.PIPE, text=True) as daemon:
        for line in daemon.stderr:
            if "event=teams" in line:
                break
        daemon.send_signal(signal.SIGSTOP)
        changed = weights.stat().st_mtime_ns
        with open(weights, "r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(bytes(8))
        assert weights.stat().st_mtime_ns != changed
        daemon.send_signal(signal.SIGCONT)
        rest = ""
        for line in daemon.stderr:
            rest += line
            if "event=ready" in line:  # it had read everything before it was stopped
                daemon.terminate()
        status = daemon.wait()
    assert (status == 65 and "was written while it was read" in rest and str(weights) in rest) or "event=ready" in rest, rest
