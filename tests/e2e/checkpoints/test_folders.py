"""Folders and files that people name in the place of a checkpoint: served, or refused with what they are and what to do."""

import os

import pytest

from harness.checkpoints import copy_case, read_header, write_safetensors
from harness.daemon import run_program

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n"


def refused(path, *named):
    done = run_program("expertd", "--model", path, "--listen", "127.0.0.1:0", "--http", "off")
    assert done.returncode == 65, done.stderr
    for word in named:
        assert word in done.stderr, f"{word!r} is not named in\n{done.stderr}"


@pytest.fixture
def folder(tmp_path):
    return copy_case("mixtral", tmp_path)


# The files of a folder that is no checkpoint, and words of its error.
FOLDERS = {
    "adapter": (("adapter_config.json", "adapter_model.safetensors"), ("LoRA adapter", "merge it")),
    "gguf": (("model-Q4_K_M.gguf",), ("model-Q4_K_M.gguf", "GGUF")),
    "mistral": (("consolidated.safetensors",), ("consolidated.safetensors", "Mistral's own form", "params.json")),
    "pickled": (("pytorch_model-00001-of-00002.bin",), ("pytorch_model-00001-of-00002.bin", "convert them to safetensors")),
    "engine": (("rank0.engine", "rank1.engine"), ("rank0.engine", "engine")),
    "download": (("model-00001-of-00002.safetensors.incomplete",), ("a download is under way", "finish it")),
    "diffusers": (("model_index.json",), ("model_index.json", "diffusers")),
    "onnx": (("model.onnx",), ("model.onnx", "not supported")),
    "openvino": (("openvino_model.xml", "openvino_model.bin"), ("openvino_model.xml", "OpenVINO")),
    "deepspeed": (("latest", "zero_to_fp32.py"), ("zero_to_fp32.py", "DeepSpeed", "--safe_serialization")),
    "torchtitan": ((".metadata", "__0_0.distcp"), ("__0_0.distcp", "TorchTitan")),
    "megatron": (("latest_checkpointed_iteration.txt",), ("Megatron",)),
    "empty": ((), ("is an empty folder",)),
}


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("config", (False, True), ids=("alone", "with_config"))
def test_another_kind_of_folder_is_named(tmp_path, folder, name, config):
    files, named = FOLDERS[name]
    other = tmp_path / "other"
    other.mkdir()
    for file in files:
        (other / file).write_bytes(b"")
    if config:
        (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    refused(other, *(named if files or not config else ("is the download complete?",)))


def test_an_adapter_beside_a_model_is_noted(folder, start_daemon):
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    [event] = start_daemon(model=folder).events("checkpoint_note")
    assert event["kind"] == "adapter" and "adapter_config.json" in event["message"] and "ignored" in event["message"]


def test_pointers_of_git_lfs_are_named(folder):
    for name in ("config.json", "model.safetensors"):
        text = (folder / name).read_bytes()
        (folder / name).write_text(POINTER)
        refused(folder, name, "Git LFS pointer", "git lfs pull")
        (folder / name).write_bytes(text)


CONTENTS = {
    "page": (b"<!DOCTYPE html>\n<html><body>503</body></html>", "it is an HTML page"),
    "storage_error": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "it is an XML document"),
    "hub_error": (b'{"error":"Access to model x is restricted"}', "it is text, not weights"),
    "pickle": (b"PK\3\4" + bytes(26) + b"archive/data.pkl", "it is a pickle of PyTorch"),
    "before_gguf": (b"tjgg\3\0\0\0" + bytes(64), "llama.cpp from before GGUF"),
    "reserved": (bytes(4096), "it begins with zeros"),
    "xet": (b"# xet version 0\nfilesize = 5\n", "git-xet"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_weights_that_are_another_file_say_what_it_is(folder, name):
    content, named = CONTENTS[name]
    (folder / "model.safetensors").write_bytes(content)
    refused(folder, "model.safetensors", named)


@pytest.mark.parametrize("encode", (lambda text: b"\xef\xbb\xbf" + text, lambda text: text.replace(b"\n", b"\r\n")), ids=("mark", "crlf"))
def test_a_config_written_by_an_editor_is_served(folder, start_daemon, encode):
    file = folder / "config.json"
    file.write_bytes(encode(file.read_bytes()))
    start_daemon(model=folder)


@pytest.mark.parametrize("encode, named", ((lambda text: text.decode().encode("utf-16"), "UTF-16"),
                                           (lambda text: text.decode().encode("utf-16-be"), "UTF-16"),
                                           (lambda text: text + bytes(100), "is NUL: the file is damaged"),
                                           (lambda text: b"", "is empty"), (lambda text: b"<!DOCTYPE html>", "it is an HTML page, not the file itself"),
                                           (lambda text: b"Entry not found", "bad JSON in line 1"),
                                           (lambda text: b'{"error": "Access is restricted"}', "it says: Access is restricted")))
def test_a_config_that_is_no_json_says_why(folder, encode, named):
    file = folder / "config.json"
    file.write_bytes(encode(file.read_bytes()))
    refused(folder, "config.json", named)


def test_a_config_of_another_kind_is_named(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    refused(folder, "config.json", "not a regular file")
    (folder / "config.json").rmdir()
    (folder / "config.json").symlink_to("gone")
    refused(folder, "config.json", "target of this link")


def test_a_file_names_its_folder(folder):
    for name in ("model.safetensors", "config.json"):
        refused(folder / name, name, "is not a folder", f"such as {folder}")


def test_a_path_that_is_not_there_names_the_nearest_folder(folder):
    refused(folder / "a" / "b", f"the nearest folder that exists is {folder}")


def test_a_folder_above_names_the_checkpoints(folder, tmp_path):
    refused(tmp_path, "no config.json", "mixtral", "name that folder")


# Tensors of one expert, or of all experts of a layer, in formats of other programs.
FORMATS = {
    "exl2": ("EXL2", ("experts.0.w1.q_weight", "experts.0.w1.q_scale", "experts.0.w1.q_invperm")),
    "exl3": ("EXL3", ("experts.0.w1.trellis", "experts.0.w1.suh", "experts.0.w1.svh")),
    "bitsandbytes": ("bitsandbytes", ("experts.0.w1.weight", "experts.0.w1.weight.absmax",
                                      "experts.0.w1.weight.quant_state.bitsandbytes__nf4")),
    "hqq": ("HQQ", ("experts.0.w1.W_q", "experts.0.w1.scale", "experts.0.w1.zero")),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_of_another_program_is_named(folder, name):
    header, start = read_header(folder / "model.safetensors")
    data = (folder / "model.safetensors").read_bytes()[start:]
    tensors = {tensor: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]) for tensor, entry in header.items()
               if tensor != "__metadata__" and ".experts." not in tensor}
    layers = {tensor.split(".block_sparse_moe.")[0] for tensor in tensors if ".block_sparse_moe." in tensor}
    tensors.update({f"{layer}.block_sparse_moe.{suffix}": ("U8", (8,), bytes(8)) for layer in layers for suffix in FORMATS[name][1]})
    write_safetensors(folder / "model.safetensors", tensors)
    refused(folder, FORMATS[name][0], "is not supported", "take the")


def test_a_folder_that_cannot_be_read_is_not_called_empty(folder):
    if os.geteuid() == 0:
        pytest.skip("root reads every folder")
    folder.chmod(0)
    try:
        refused(folder, "Permission denied")
    finally:
        folder.chmod(0o755)
