"""Checkpoints of several files: the index decides which file counts, only the files of served layers must be there, and without an index
numbered shards are read. The answers are those of the golden case, or the error names the files."""

import json
import os
import time

import numpy as np
import pytest

from harness.checkpoints import read_header, write_safetensors
from harness.daemon import run_program
from harness.paths import GOLDENS, SLOW
from harness.tensors import error_per_token, tensor, values_of

CASE = "qwen3_moe_sharded"
INDEX, SINGLE, HEAD = "model.safetensors.index.json", "model.safetensors", "model-00001-of-00003.safetensors"
LAYERS = {0: "model-00002-of-00003.safetensors", 1: "model-00003-of-00003.safetensors"}
EXPERT = "model.layers.{}.mlp.experts.3.down_proj.weight"


def raw_tensors(path):
    """{name: (dtype, shape, bytes)}, as write_safetensors takes them."""
    header, start = read_header(path)
    data = path.read_bytes()
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
            for name, entry in header.items()}


def zeros(entry):
    return entry[0], entry[1], bytes(len(entry[2]))


class Folder:
    """The golden case with one file for each layer and one for all other tensors. `files` and `index` may be changed before `write`."""

    def __init__(self, path):
        self.path, self.files, self.config = path, {HEAD: {}}, (GOLDENS / CASE / "config.json").read_text()
        for source in sorted((GOLDENS / CASE).glob("model-*.safetensors")):
            for name, entry in raw_tensors(source).items():
                file = next((file for layer, file in LAYERS.items() if name.startswith(f"model.layers.{layer}.")), HEAD)
                self.files.setdefault(file, {})[name] = entry
        self.index = {name: file for file, tensors in self.files.items() for name in tensors}

    def write(self):
        self.path.mkdir()
        (self.path / "config.json").write_text(self.config)
        for file, tensors in self.files.items():
            write_safetensors(self.path / file, tensors)
        if self.index is not None:
            (self.path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": self.index}))
        return self.path


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "model")


@pytest.fixture
def serve(case, start_daemon):
    """serve(path, layers, *arguments): the daemon's answers for these layers are the golden case's. Returns the daemon."""

    def check(path, layers=tuple(LAYERS), arguments=()):
        golden = case(CASE)
        daemon = start_daemon("--compute-dtype", "f32", *arguments, model=path)
        with daemon.client() as client:
            assert [layer.layer for layer in client.describe().models[0].layers] == list(layers)
            for layer in layers:
                answer = client.forward(layer=layer, hidden=tensor(golden.get(layer, "input")))
                assert error_per_token(values_of(answer.output), golden.get(layer, "output")).max() <= golden.bound("f32")
        return daemon

    return check


def refused(path, *named, arguments=()):
    done = run_program("expertd", "--model", path, "--listen", "127.0.0.1:0", "--http", "off", *arguments)
    assert done.returncode == 65, done.stderr
    for word in named:
        assert word in done.stderr, f"{word!r} is not named in\n{done.stderr}"


def test_the_copy_that_the_index_names_counts(folder, serve):
    """Edited models are published so: an overlay holds new tensors, and the old ones stay in their shards."""
    overlay = folder.files["overlay.safetensors"] = {}
    for layer, file in LAYERS.items():
        name = EXPERT.format(layer)
        overlay[name] = folder.files[file][name]
        folder.files[file][name] = zeros(overlay[name])
        folder.index[name] = "overlay.safetensors"
    daemon = serve(folder.write())
    assert not daemon.events("checkpoint_note")


@pytest.mark.parametrize("first", ["a.safetensors", "model-00001-of-00003-old.safetensors"])
def test_a_copy_that_other_programs_would_take_is_in_the_log(folder, serve, first):
    """transformers, vLLM and SGLang read all tensors of each file of the index, and the last file counts."""
    name, file = EXPERT.format(0), LAYERS[0]
    folder.files[first] = {name: folder.files[file][name]}
    folder.index[name] = first
    folder.files[file][name] = zeros(folder.files[file][name])
    [note] = serve(folder.write()).events("checkpoint_note")
    assert note["kind"] == "copy_in_later_file" and all(text in note["message"] for text in (name, first, file, INDEX))


def test_copies_of_tensors_that_are_not_served_do_not_matter(folder, serve):
    folder.files[LAYERS[1]]["model.embed_tokens.weight"] = folder.files[HEAD]["model.embed_tokens.weight"]
    folder.index["lm_head.weight"] = LAYERS[0]  # stale: that file does not have it
    folder.index["visual.blocks.0.weight"] = "vision.safetensors"
    folder.index["mtp.layers.0.mlp.experts.0.up_proj.weight"] = "mtp.safetensors"
    folder.index["model.layers.2.mlp.experts.0.up_proj.weight"] = "mtp.safetensors"  # past num_hidden_layers
    serve(folder.write())


def test_files_without_served_layers_may_be_absent_or_damaged(folder, serve):
    path = folder.write()
    (path / HEAD).unlink()
    (path / LAYERS[1]).write_bytes((path / LAYERS[1]).read_bytes()[:1000])
    serve(path, layers=(0,), arguments=("--layers", "0-0"))
    refused(path, EXPERT.format(1)[:20], LAYERS[1], "truncated", "download it again")
    (path / LAYERS[1]).unlink()
    refused(path, "model.layers.1.mlp.", LAYERS[1], "2 of 3 shards are missing", "download it", "--layers A-B")
    refused(path, LAYERS[1], arguments=("--layers", "1-1"))


@pytest.mark.parametrize("suffix", ("aria2", "part", "crdownload", "incomplete"))
def test_a_file_with_the_control_file_of_a_download_is_not_served(folder, serve, suffix):
    """Programs reserve a file's size first: what is not there yet reads as zeros."""
    path = folder.write()
    control = path / f"{LAYERS[1]}.{suffix}"
    control.write_bytes(b"")
    refused(path, f"{path / LAYERS[1]}, which holds tensor model.layers.1.mlp.", "is not downloaded completely", f"delete {control}")
    [event] = serve(path, layers=(0,), arguments=("--layers", "0-0")).events("checkpoint_note")
    assert event["kind"] == "unfinished_download" and str(control) in event["message"]
    control.unlink()
    assert not serve(path).events("checkpoint_note")


def test_attention_of_a_served_layer_may_be_absent(folder, serve):
    """The block alone is needed, not the other tensors of its layer."""
    for name in folder.index:
        if ".self_attn." in name or "layernorm" in name:
            folder.index[name] = "attention.safetensors"
    serve(folder.write())


def test_a_served_tensor_that_the_index_lists_must_be_there(folder):
    name = EXPERT.format(1)
    del folder.files[LAYERS[1]][name]
    refused(folder.write(), name, LAYERS[1], INDEX, "does not have it")


def test_a_tensor_of_a_served_block_that_the_index_does_not_list_is_logged(folder, serve):
    extra = "model.layers.1.mlp.experts.3.down_proj.g_idx"
    folder.files[LAYERS[1]][extra] = ("I32", [4], bytes(16))
    daemon = serve(folder.write())
    [event] = daemon.events("checkpoint_note")
    assert extra in event["message"] and LAYERS[1] in event["message"] and INDEX in event["message"]


def test_a_stray_single_file_beside_an_index_is_logged_and_ignored(folder, serve):
    folder.files[SINGLE] = {"model.embed_tokens.weight": zeros(folder.files[HEAD]["model.embed_tokens.weight"])}
    daemon = serve(folder.write())
    [event] = daemon.events("checkpoint_note")
    assert INDEX in event["message"] and SINGLE in event["message"] and "ignored" in event["message"]


def test_a_damaged_single_file_beside_an_index_is_ignored(folder, serve):
    path = folder.write()
    (path / SINGLE).write_bytes(b"an interrupted save")
    assert SINGLE in serve(path).events("checkpoint_note")[0]["message"]


def test_a_complete_single_file_beside_an_index_is_refused(folder):
    """transformers takes the single file, other programs take the index."""
    folder.files[SINGLE] = {name: zeros(entry) for file in LAYERS.values() for name, entry in folder.files[file].items()}
    path = folder.write()
    refused(path, SINGLE, INDEX, "model.layers.0.mlp.", "programs differ", f"move {SINGLE} away, or the index and its shards")
    for file in (INDEX, *LAYERS.values(), HEAD):
        (path / file).rename(path.parent / file)
    done = run_program("expertd", "--model", path, "--inspect")
    assert done.returncode == 0, done.stderr


def test_a_single_file_beside_an_index_without_files_is_served(folder, serve):
    folder.files = {SINGLE: {name: entry for tensors in folder.files.values() for name, entry in tensors.items()}}
    daemon = serve(folder.write())
    assert "none of the 3 files" in daemon.events("checkpoint_note")[0]["message"]


def test_an_index_may_name_the_single_file(folder, serve):
    folder.files = {SINGLE: {name: entry for tensors in folder.files.values() for name, entry in tensors.items()}}
    folder.index = dict.fromkeys(folder.index, SINGLE)
    assert not serve(folder.write()).events("checkpoint_note")


def test_numbered_shards_without_an_index_are_served(folder, serve):
    folder.index = None
    path = folder.write()
    serve(path)
    (path / LAYERS[0]).rename(path / "elsewhere")
    refused(path, LAYERS[0], "1 of 3 shards are missing")


def test_without_an_index_a_served_tensor_in_two_files_is_refused(folder, serve):
    folder.index = None
    folder.files[HEAD]["lm_head.weight"] = folder.files[LAYERS[0]]["lm_head.weight"] = folder.files[HEAD]["lm_head.weight"]
    name = EXPERT.format(1)
    folder.files[HEAD][name] = zeros(folder.files[LAYERS[1]][name])
    path = folder.write()
    refused(path, name, HEAD, LAYERS[1])
    serve(path, layers=(0,), arguments=("--layers", "0-0"))


def test_two_sets_of_numbered_shards_are_refused(folder):
    folder.index = None
    folder.files["model-00001-of-00004.safetensors"] = {}
    refused(folder.write(), "model-00001-of-00004.safetensors", "different sets")


@pytest.mark.parametrize("seed", range(8))
def test_any_spread_over_files_is_served_or_refused_by_name(tmp_path, serve, seed):
    """Tensors lie anywhere, with worthless copies elsewhere; some files are damaged or gone. The answers are right, or the error names a
    file that a served block needs."""
    random = np.random.default_rng(seed)
    folder, files = Folder(tmp_path / "model"), [f"part-{i}.safetensors" for i in range(6)]
    tensors = {name: entry for part in folder.files.values() for name, entry in part.items()}
    folder.files = {file: {} for file in files}
    for name, entry in tensors.items():
        layer = next((layer for layer in LAYERS if name.startswith(f"model.layers.{layer}.mlp.")), None)
        choices = files[:2] if layer == 0 else files[2:4] if layer == 1 else files  # of each block in two files
        folder.index[name] = str(random.choice(choices))
        for file in files:
            if file == folder.index[name]:
                folder.files[file][name] = entry
            elif random.random() < 0.3:
                folder.files[file][name] = zeros(entry)
    path, layer = folder.write(), int(random.integers(2))
    needed = {folder.index[name] for name in tensors if name.startswith(f"model.layers.{layer}.mlp.")}
    for file in files:
        if file not in needed:
            [(path / file).unlink, lambda file=file: (path / file).write_bytes(b"damaged"), lambda: None][random.integers(3)]()
    serve(path, layers=(layer,), arguments=("--layers", f"{layer}-{layer}"))
    lost = str(random.choice(sorted(needed)))
    [(path / lost).unlink, lambda: os.truncate(path / lost, 2000)][random.integers(2)]()
    refused(path, lost, f"model.layers.{layer}.mlp.", arguments=("--layers", f"{layer}-{layer}"))


@pytest.mark.release
def test_a_thousand_shards_are_opened_at_once(folder, serve):
    """Only headers are read, and of one served layer only those of its file."""
    layers, block = 1000, folder.files[LAYERS[0]]
    config = json.loads(folder.config)
    config["num_hidden_layers"] = layers
    folder.config = json.dumps(config)
    folder.files, folder.index = {}, {}
    for layer in range(layers):
        file = f"model-{layer + 1:05}-of-01000.safetensors"
        folder.files[file] = {name.replace("layers.0.", f"layers.{layer}."): entry for name, entry in block.items()}
        folder.index.update(dict.fromkeys(folder.files[file], file))
    path = folder.write()
    for file in list(folder.files)[1:]:
        (path / file).write_bytes(b"damaged")
    began = time.monotonic()
    serve(path, layers=(0,), arguments=("--layers", "0-0"))
    assert time.monotonic() - began < 5 * SLOW
