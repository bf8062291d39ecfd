"""expertd --inspect and expertctl inspect: a model described without reading its weights, with the figures of a start."""

import json
import os
import platform
import shutil
import subprocess
import time

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

from harness.checkpoints import copy_case, read_header
from harness.daemon import Daemon, clean_environment, run_program
from harness.gguf_models import Model as Gguf
from harness.gguf_models import Spec
from harness.paths import BIN, GOLDENS, SANITIZER, SLOW

CASES = ("mixtral", "qwen2_moe", "qwen3_moe_sharded", "deepseek_v3_fp8", "gpt_oss_mxfp4", "kimi_k2_int4", "mixtral_awq")


def inspect(model, *arguments, status=0):
    done = run_program("expertd", "--inspect", "--model", model, *arguments)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def inspect_json(model, *arguments, status=0):
    return json.loads(inspect(model, "--json", *arguments, status=status))


def rows_of(text):
    """{first word: the line} of the tables."""
    return {line.split()[0]: line for line in text.splitlines() if line.strip()}


@pytest.mark.share(4)
@pytest.mark.parametrize("arguments", ((), ("--widen",), ("--shards", 2)))
@pytest.mark.parametrize("case", CASES + ("synthetic:tiny", "synthetic:tiny,format=mxfp4"))
def test_the_figures_are_those_of_a_start(case, arguments, start_daemon):
    model = case if case.startswith("synthetic:") else GOLDENS / case
    found = inspect_json(model, *arguments)
    daemon = start_daemon(*arguments, model=model, tcp=False, http="off")
    loaded, engine = daemon.events("loaded")[0], daemon.events("engine")[0]
    shards = found["shards"][0]
    assert found["served"] and found["refusal"] is None
    assert shards["shards"] == int(engine["shards"]) and shards["fits"]
    assert shards["weights_bytes"] == int(loaded["weights_bytes"])
    assert shards["scratch_bytes"] == int(engine["scratch_bytes"])
    assert found["numerics_id"] == loaded["numerics_id"] and found["model_type"] == loaded["architecture"]
    with daemon.client() as client:
        served = client.describe().models[0]
        for mine, theirs in zip(found["layers"], served.layers, strict=True):
            assert (mine["layer"], mine["num_experts"], mine["hidden_size"], mine["top_k"], mine["prefix"]) == (
                theirs.layer, theirs.num_experts, theirs.hidden_size, theirs.top_k, theirs.prefix)


# ---- devices

GGUF = {"minima": (Type.Q4_K, Type.Q4_K, Type.Q4_K), "mixed": (Type.Q2_K, Type.Q8_0, Type.Q4_0), "kernels": (Type.Q6_K, Type.Q6_K, Type.Q3_K)}


def case_of(name, folder):
    if name in GGUF:
        return Gguf(folder, Spec("qwen3moe", norm=True, model_type="qwen3_moe"), GGUF[name]).path
    return name if name.startswith("synthetic:") else GOLDENS / name


@pytest.mark.share(3)
@pytest.mark.parametrize("arguments", (("--device", "sim"), ("--device", "sim:2", "--move-bytes-max", "3MiB"),
                                       ("--device", "sim:2", "--shards", 3, "--max-batch-tokens", 64, "--widen")))
@pytest.mark.parametrize("case", (*GGUF, "qwen2_moe", "gpt_oss_mxfp4", "synthetic:tiny,format=mxfp4"))
def test_the_figures_on_devices_are_those_of_a_start(case, arguments, tmp_path, start_daemon):
    model = case_of(case, tmp_path)
    found = inspect_json(model, *arguments)
    daemon = start_daemon(*arguments, model=model, tcp=False)
    loaded, engine, status = daemon.events("loaded")[0], daemon.events("engine")[0], json.loads(daemon.get("/api/status")[1])
    devices = found["devices"]
    assert found["served"] and found["refusal"] is None and devices["refusal"] is None
    assert devices["numerics_id"] == loaded["numerics_id"]
    assert devices["reserved_bytes"] == int(engine["device_bytes"]) == status["device"]["reserved_bytes"]
    assert devices["host_scratch_bytes"] == int(engine["scratch_bytes"])
    assert (devices["kind"], devices["count"], devices["name"]) == ("sim", status["device"]["count"], status["device"]["name"])
    each = devices["devices"]
    assert sum(layer["device_bytes"] for layer in found["layers"]) == sum(device["weights_bytes"] for device in each)
    assert all(device["fits"] and device["available_bytes"] == 64 << 30 for device in each)
    assert (sum(device["moves_bytes"] for device in each) > 0) == ("sim:2" in arguments)
    assert [layer["widened"] or "" for layer in found["layers"]] == [layer["widened"] for layer in status["layers"]]
    lines = [{key: line[key] for key in ("format", "layers", "matrices", "stored_bytes", "bytes")} for line in daemon.events("widened")]
    assert lines == [{key: str(entry[key]) for key in lines[0]} for entry in devices["widened"]]
    assert bool(lines) == (case in ("minima", "mixed") and "--widen" not in arguments)


def test_layers_and_devices_add_up():
    all_layers, one = (inspect_json("synthetic:tiny", "--device", "sim", *layers) for layers in ((), ("--layers", "2-2")))
    assert all_layers["layers"][2]["device_bytes"] == one["layers"][0]["device_bytes"] == one["devices"]["devices"][0]["weights_bytes"]
    text = inspect("synthetic:tiny", "--device", "sim:2")
    rows = [line.split() for line in text.splitlines() if line.startswith("sim ")]
    assert [row[:2] + row[-1:] for row in rows] == [["sim", "0", "fits"], ["sim", "1", "fits"]]
    assert "on devices 1/bf16/sm_90" in text and "widened" not in text


def test_what_devices_widen_is_said(tmp_path):
    model = case_of("mixed", tmp_path)
    lines = [line for line in inspect(model, "--device", "sim").splitlines() if line.startswith("widened ")]
    assert len(lines) == 2 and "q2_k to BF16 in layers 0, 8 matrices: 168.0 KiB in the files, 1.0 MiB on devices" in lines[0]
    assert "no kernel for this format" in lines[0] and "gate and up of an expert in one format" in lines[1]
    assert inspect_json(model)["devices"] is None and "on devices" not in inspect(model)


def huge_gguf(folder):
    """20 GiB of holes in Q4_K, for which a simulated GPU of 64 GiB would need 72."""
    hidden, width, experts, layers = 2048, 1024, 256, 24
    writer = GGUFWriter(folder / "huge.gguf", "qwen3moe")
    sizes = {"block_count": layers, "embedding_length": hidden, "expert_count": experts, "expert_used_count": 8,
             "expert_feed_forward_length": width, "context_length": 4096, "attention.head_count": 4}
    for key, value in sizes.items():
        writer.add_uint32(f"qwen3moe.{key}", value)
    for layer in range(layers):
        writer.add_tensor_info(f"blk.{layer}.ffn_gate_inp.weight", (experts, hidden), np.dtype(np.float32), 4 * experts * hidden, Type.F32)
        for part in ("gate", "up", "down"):
            n, k = (hidden, width) if part == "down" else (width, hidden)
            row = k // 256 * 144
            writer.add_tensor_info(f"blk.{layer}.ffn_{part}_exps.weight", (experts, n, row), np.dtype(np.uint8), experts * n * row, Type.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    stored = layers * (4 * experts * hidden + experts * 3 * hidden * width // 256 * 144)
    path = folder / "huge.gguf"
    os.truncate(path, -(-path.stat().st_size // 32) * 32 + stored)
    return path


def test_a_model_that_does_not_fit_widened_is_refused_with_the_reason(tmp_path):
    path = huge_gguf(tmp_path)
    found = inspect_json(path, "--device", "sim", status=69)
    started = run_program("expertd", "--model", path, "--device", "sim", "--listen", f"unix:{tmp_path}/s", "--http", "off")
    assert started.returncode == 69 and found["refusal"]["message"] in started.stderr and found["refusal"] == found["devices"]["refusal"]
    message = found["refusal"]["message"]
    assert "20.2 GiB of q4_k in the files become 72.0 GiB of BF16 in all, as GPUs have no kernels for them" in message
    assert "take the model in another format, or let the CPU compute the codes (--device cpu)" in message
    assert not found["devices"]["devices"][0]["fits"] and found["layers"][23]["widened"] == "q4_k"
    few = inspect_json(path, "--device", "sim", "--layers", "0-19")
    assert few["served"] and few["devices"]["widened"][0]["layers"] == "0-19"


def test_devices_decide_what_is_refused(tmp_path):
    """Latent experts run on the CPU only; a model larger than the host's memory may fit on devices."""
    keys = {"expert_gating_func": 2, "expert_shared_count": 1, "expert_shared_feed_forward_length": 128, "moe_latent_size": 512}
    spec = Spec("nemotron_h_moe", keys, score="sigmoid", select_bias=True, shared=128, activation="relu2", latent=512,
                model_type="nemotron_h")
    latent = Gguf(tmp_path, spec, Type.Q8_0).path
    assert inspect_json(latent)["served"]
    refused = inspect_json(latent, "--device", "sim", status=69)
    assert "latent experts" in refused["refusal"]["message"] and refused["layers"][0].get("device_bytes") is None
    small = ("--memory-max", "9MiB", "--threads", 1)
    assert inspect_json("synthetic:tiny", *small, "--device", "cpu", status=69)["refusal"]["reason"] == "NOMEM"
    served = inspect_json("synthetic:tiny", *small, "--device", "sim")
    assert served["served"] and not served["shards"][0]["fits"]
    none = inspect_json("synthetic:tiny", "--device", "sim:9", status=69)
    assert "there are 8" in none["refusal"]["message"] and none["devices"] is None and none["shards"][0]["fits"]


def test_bytes_on_disk_are_those_of_the_headers():
    header, _ = read_header(GOLDENS / "mixtral" / "model.safetensors")
    for layer in inspect_json(GOLDENS / "mixtral")["layers"]:
        ends = [entry["data_offsets"] for name, entry in header.items() if f"layers.{layer['layer']}.block_sparse_moe" in name]
        assert layer["stored_bytes"] == sum(end - begin for begin, end in ends)


def test_equal_layers_are_one_row():
    rows = rows_of(inspect("synthetic:qwen3-30b-a3b,experts=16"))
    assert rows["0-47"].split()[1:4] == ["16", "8", "2048"] and rows["0-47"].split()[-1] == "BF16"
    assert "48 layers" in rows["served"]


def test_several_numbers_of_shards_divide_the_experts():
    shards = inspect_json("synthetic:tiny")["shards"]
    assert [s["shards"] for s in shards] == [1, 2, 4, 8]
    assert [shards[0]["largest_shard_bytes"] // s["largest_shard_bytes"] for s in shards] == [1, 2, 4, 8]
    few = inspect_json("synthetic:tiny,experts=4")["shards"]
    assert few[2]["largest_shard_bytes"] == few[3]["largest_shard_bytes"] > 0, "the largest of 8 shards has one of 4 experts"


def test_a_model_larger_than_memory_is_described():
    found = inspect_json("synthetic:deepseek-v3", status=69)
    assert not found["served"] and not found["shards"][0]["fits"] and len(found["layers"]) == 58
    assert "does not fit" in inspect("synthetic:deepseek-v3", status=69)


def test_what_does_not_fit_is_refused_as_a_start_refuses_it():
    limited = ("--memory-max", "4GiB", "--device", "cpu")
    found = inspect_json("synthetic:qwen3-30b-a3b", *limited, status=69)
    started = run_program("expertd", "--model", "synthetic:qwen3-30b-a3b", *limited, "--listen", "127.0.0.1:0", "--http", "off")
    assert started.returncode == 69 and found["refusal"]["message"] in started.stderr and found["refusal"]["reason"] == "NOMEM"
    assert "3 layers would fit: --layers 0-2" in found["refusal"]["message"]
    assert inspect_json("synthetic:qwen3-30b-a3b", *limited, "--layers", "0-2")["served"]


def test_the_limit_that_decides_is_shown():
    for limit, status in (("12MiB", 69), ("13MiB", 0)):
        text = inspect("synthetic:tiny", "--memory-max", limit, "--device", "cpu", status=status)
        assert f"of it for weights and loading: {limit[:2]}.0 MiB (the configured memory limit)" in text
        assert inspect_json("synthetic:tiny", "--memory-max", limit, status=status)["memory_loading_bytes"] == int(limit[:2]) << 20
    assert "of it for weights" not in inspect("synthetic:tiny")


def test_layers_are_selected():
    assert [layer["layer"] for layer in inspect_json(GOLDENS / "mixtral", "--layers", "1-1")["layers"]] == [1]


# ---- refusals


def change_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    config.update(values)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_refused_layer_does_not_hide_the_others(tmp_path):
    folder = copy_case("mixtral", tmp_path)
    weights = folder / "model.safetensors"
    name = b"model.layers.1.block_sparse_moe.experts.3.w2.weight"
    weights.write_bytes(weights.read_bytes().replace(name, name.replace(b"w2", b"w9")))
    text = inspect(folder, status=65)
    rows = rows_of(text)
    assert rows["0"].split()[-1] == "F32" or rows["0"].split()[-1] == "BF16"
    assert "refused: " in rows["1"] and "experts.3" in rows["1"]
    assert "--layers 0-0 would be served" in text
    found = inspect_json(folder, status=65)
    assert [layer["served"] for layer in found["layers"]] == [True, False]
    assert not found["served"] and found["model_type"] == "mixtral" and found["refusal"]["reason"] == "CHECKPOINT"
    assert inspect_json(folder, "--layers", "0-0")["served"]


def test_equal_refusals_are_one_row(tmp_path):
    folder = copy_case("mixtral", tmp_path)
    change_config(folder, num_experts_per_tok=4096)
    text = inspect(folder, status=65)
    assert sum("refused: " in line for line in text.splitlines()) == 1 and rows_of(text)["0-1"].split()[1] == "refused:", text


def test_layers_whose_files_are_missing_are_named(thousand_files, tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    for file in thousand_files.iterdir():
        (folder / file.name).symlink_to(file)
    header, _ = read_header(thousand_files / "model-00005-of-01000.safetensors")
    gone = {int(name.split(".")[2]) for name in header}
    assert gone == {0, 4, 31}
    (folder / "model-00005-of-01000.safetensors").unlink()
    begun = time.monotonic()
    found = inspect_json(folder, status=65)
    assert time.monotonic() - begun < 5 * SLOW
    assert {layer["layer"] for layer in found["layers"] if not layer["served"]} == gone and len(found["layers"]) == 32
    assert all("model-00005-of-01000" in layer["refusal"] for layer in found["layers"] if not layer["served"])
    assert "--layers 5-30 would be served" in inspect(folder, status=65)


def test_what_is_odd_but_served_is_noted(tmp_path):
    folder = copy_case("qwen3_moe_sharded", tmp_path)
    (folder / "model.safetensors").write_bytes(b"an interrupted save")
    found = inspect_json(folder)
    assert found["served"] and "model.safetensors" in found["notes"][0]["message"]
    assert rows_of(inspect(folder))["note"].split("note")[1].strip() == found["notes"][0]["message"]


def test_a_refusal_is_the_daemons(tmp_path):
    folder = copy_case("mixtral", tmp_path)
    change_config(folder, hidden_act="tanh")
    found = inspect_json(folder, status=65)
    started = run_program("expertd", "--model", folder, "--listen", "127.0.0.1:0", "--http", "off")
    assert started.returncode == 65 and found["refusal"]["message"] in started.stderr.replace('\\"', '"')
    assert found["model_type"] == "mixtral" and found["tensors"] > 0


@pytest.mark.parametrize("damage, model_type", [
    (lambda folder: change_config(folder, model_type="mixtrel", architectures=["Mixtrel"]), "mixtrel"),
    (lambda folder: (folder / "model.safetensors").unlink(), "mixtral"),
    (lambda folder: os.truncate(folder / "model.safetensors", 1000), "mixtral"),
    (lambda folder: (folder / "config.json").write_text("{"), None),
    (lambda folder: shutil.rmtree(folder), None),
])
def test_the_rest_is_recognised(damage, model_type, tmp_path):
    folder = copy_case("mixtral", tmp_path)
    damage(folder)
    found = inspect_json(folder, status=65)
    assert found["model_type"] == model_type and found["layers"] == [] and found["refusal"]["message"]
    assert "refused" in inspect(folder, status=65)


def test_hostile_text_does_not_reach_the_terminal(tmp_path):
    folder = copy_case("mixtral", tmp_path)
    change_config(folder, model_type="\x1b[31mred", architectures=[])
    text = inspect(folder, status=65)
    assert "\x1b" not in text and "red" in text


# ---- sizes


@pytest.fixture(scope="module")
def thousand_files(tmp_path_factory):
    """Mixtral's shapes of 32 layers in a thousand files with holes for weights, more than any memory."""
    folder = tmp_path_factory.mktemp("thousand")
    hidden, width, experts, layers = 4096, 14336, 32, 32
    change = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": width, "num_local_experts": experts,
              "num_experts_per_tok": 2}
    shutil.copyfile(GOLDENS / "mixtral" / "config.json", folder / "config.json")
    change_config(folder, **change)
    files = [{} for _ in range(1000)]
    for layer in range(layers):
        block = f"model.layers.{layer}.block_sparse_moe"
        files[layer][f"{block}.gate.weight"] = [experts, hidden]
        for expert in range(experts):
            at = files[(layer * experts + expert) % 1000]
            at.update({f"{block}.experts.{expert}.{part}.weight": [hidden, width] if part == "w2" else [width, hidden]
                       for part in ("w1", "w2", "w3")})
    index = {}
    for number, tensors in enumerate(files):
        name, offset, header = f"model-{number + 1:05}-of-01000.safetensors", 0, {}
        for tensor, (rows, columns) in tensors.items():
            header[tensor] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [offset, offset + 2 * rows * columns]}
            offset += 2 * rows * columns
            index[tensor] = name
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + offset)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def test_a_thousand_files_take_less_than_a_second(thousand_files):
    inspect(thousand_files, status=69)  # the folder's entries are now in the kernel's caches
    begun = time.monotonic()
    found = inspect_json(thousand_files, status=69)
    assert time.monotonic() - begun < 1 * SLOW
    assert found["refusal"]["reason"] == "NOMEM" and found["stored_bytes"] > 300 << 30 and not found["shards"][0]["fits"]


# ---- the command line


def test_expertctl_runs_the_expertd_beside_it():
    done = run_program("expertctl", "inspect", GOLDENS / "mixtral", "--layers", "0-0", "--shards", 4, "--json", env={"PATH": ""})
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["shards"][0]["shards"] == 4 and len(found["layers"]) == 1
    assert run_program("expertctl", "inspect", "/nonexistent").returncode == 65


@pytest.mark.skipif(SANITIZER != "", reason="the copy needs the sanitizer's symbolizer")
def test_expertctl_runs_the_expertd_on_path_or_says_that_there_is_none(tmp_path):
    alone = tmp_path / "expertctl"
    shutil.copy(BIN / "expertctl", alone)
    run = lambda path: subprocess.run([alone, "inspect", "synthetic:tiny"], env=clean_environment({"PATH": str(path)}), text=True,
                                      capture_output=True)
    assert "synthetic:tiny" in run(BIN).stdout
    none = run(tmp_path)
    assert none.returncode == 69 and "neither beside this program nor on PATH" in none.stderr


@pytest.mark.parametrize("program, arguments, named", [
    ("expertd", ("--json", "--model", "synthetic:tiny"), "--inspect"),
    ("expertd", ("--inspect",), "--model"),
    ("expertctl", ("inspect",), "needs a model"),
    ("expertctl", ("inspect", "a", "b"), "b: inspect describes one model at a time, and a is named already"),
    ("expertctl", ("inspect", "--widen", "synthetic:tiny"), "expertd --inspect --model MODEL, or set their variables, as in EXPERTD_WIDEN"),
    ("expertctl", ("models", "--shards", "2"), "belongs to expertctl inspect"),
    ("expertctl", ("models", "--layers", "0-1"), "belongs to expertctl bench"),
    ("expertctl", ("models", "--device", "cpu"), "belongs to expertctl inspect"),
])
def test_wrong_command_lines(program, arguments, named):
    done = run_program(program, *arguments)
    assert done.returncode == 64 and named in done.stderr


@pytest.mark.parametrize("arguments, env, named", [
    (("--layers", "3-1"), {}, "ends before it starts"),
    (("--shards", "0"), {}, "--shards"),
    ((), {"EXPERTD_WIDEN": "perhaps"}, "EXPERTD_WIDEN"),
    (("--kernels", "neon" if platform.machine() == "x86_64" else "avx2"), {}, "kernel backend"),
])
def test_an_error_is_one_json_object_too(arguments, env, named):
    runs = [("expertd", "--inspect", "--model", "synthetic:tiny")]
    runs += [("expertctl", "inspect", "synthetic:tiny")] * ("--kernels" not in arguments)
    for run in runs:
        done = run_program(*run, "--json", *arguments, env=env)
        found = json.loads(done.stdout)["error"]
        assert done.returncode in (64, 69, 78) and named in found["message"] and found["message"] in done.stderr


def test_expertctl_describes_devices():
    done = run_program("expertctl", "inspect", "synthetic:tiny", "--device", "sim:2", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["devices"]["count"] == 2
    wrong = run_program("expertctl", "inspect", "synthetic:tiny", "--device", "gpu")
    assert wrong.returncode == 64 and "sim:N" in wrong.stderr


def test_layers_may_precede_the_command():
    done = run_program("expertctl", "--layers", "1-2", "inspect", "synthetic:tiny", "--json")
    assert [layer["layer"] for layer in json.loads(done.stdout)["layers"]] == [1, 2]


def test_a_lost_output_is_an_error():
    with open("/dev/full", "w") as full:
        done = run_program("expertd", "--inspect", "--model", "synthetic:tiny", stdout=full)
    assert done.returncode == 69 and "standard output" in done.stderr
