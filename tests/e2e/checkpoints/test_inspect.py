"""expertd --inspect and expertctl inspect: a model described without reading its weights, with the figures of a start."""

import json
import os
import platform
import shutil
import subprocess
import time

import pytest

from harness.checkpoints import copy_case, read_header
from harness.daemon import Daemon, clean_environment, run_program
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


def test_layers_may_precede_the_command():
    done = run_program("expertctl", "--layers", "1-2", "inspect", "synthetic:tiny", "--json")
    assert [layer["layer"] for layer in json.loads(done.stdout)["layers"]] == [1, 2]


def test_a_lost_output_is_an_error():
    with open("/dev/full", "w") as full:
        done = run_program("expertd", "--inspect", "--model", "synthetic:tiny", stdout=full)
    assert done.returncode == 69 and "standard output" in done.stderr
