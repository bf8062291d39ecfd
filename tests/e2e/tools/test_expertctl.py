"""expertctl, the command-line client: its output, the files that it reads and writes, and its errors."""

import json

import numpy as np
import pytest

from harness.checkpoints import read_safetensors, write_safetensors
from harness.daemon import run_program
from harness.paths import SANITIZER
from harness.protos import pb
from harness.tensors import bf16_bits, bf16_values, encode, tensor, values_of

LAYER, HIDDEN = 1, 96


@pytest.fixture
def ctl(served):
    return lambda *arguments, **options: run_program("expertctl", "--address", f"unix:{served.socket}", *arguments, **options)


@pytest.fixture
def rows(random):
    return random.standard_normal((6, HIDDEN)).astype(np.float32)


def test_models_lists_the_layers(ctl, client):
    done = ctl("models")
    assert done.returncode == 0 and "qwen2_moe" in done.stdout and "model.layers.1.mlp.experts" in done.stdout
    described = json.loads(ctl("models", "--json").stdout)
    layer = client.describe().models[0].layers[0]
    text = json.dumps(described)
    assert "qwen2_moe" in text and f"{layer.weights_id:016x}" in text and layer.numerics_id in text


def test_status_exits_0_only_while_it_serves(ctl, served):
    done = ctl("status")
    assert done.returncode == 0 and done.stdout
    assert "weights          1: BF16; computed as 1/bf16/cpu" in done.stdout
    assert json.loads(ctl("status", "--json").stdout)["models"][0]["weights"] == [{"layers": "1", "weights": "BF16"}]
    absent = run_program("expertctl", "--address", "unix:/tmp/there-is-no-such.sock", "--timeout", "2", "status")
    assert absent.returncode != 0 and "/tmp/there-is-no-such.sock" in absent.stderr + absent.stdout
    tcp = run_program("expertctl", "--address", served.tcp, "status")
    assert tcp.returncode == 0


def test_forward_from_and_to_npy_is_the_daemons_answer(ctl, client, rows, tmp_path):
    np.save(tmp_path / "in.npy", rows)
    done = ctl("forward", "--layer", LAYER, "--hidden", tmp_path / "in.npy", "--output", tmp_path / "out.npy")
    assert done.returncode == 0, done.stderr
    wanted = values_of(client.forward(layer=LAYER, hidden=tensor(rows)).output)
    assert np.load(tmp_path / "out.npy").tobytes() == wanted.tobytes()


def test_forward_from_and_to_safetensors(ctl, client, rows, tmp_path):
    write_safetensors(tmp_path / "in.safetensors", {"a": ("F32", (1,), b"\0" * 4), "h": ("BF16", rows.shape, encode(rows, "BF16"))})
    done = ctl("forward", "--layer", LAYER, "--hidden", f"{tmp_path}/in.safetensors:h", "--output",
               f"{tmp_path}/out.safetensors:y", "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    written, _ = read_safetensors(tmp_path / "out.safetensors")
    wanted = values_of(client.forward(layer=LAYER, hidden=tensor(rows, "BF16")).output)
    assert np.array_equal(written["y"], wanted)


def test_forward_with_routes_and_split_keeps_the_bytes(ctl, client, rows, tmp_path, random):
    ids = random.integers(-1, 8, (6, 3)).astype(np.int64)
    weights = random.standard_normal((6, 3)).astype(np.float32)
    for name, array in (("in", rows), ("ids", ids), ("weights", weights)):
        np.save(tmp_path / f"{name}.npy", array)
    wanted = client.forward(layer=LAYER, hidden=tensor(rows), routes=pb.Routes(ids=tensor(ids, "I64"), weights=tensor(weights)))
    for split in ((), ("--split", 1), ("--split", 4)):
        done = ctl("forward", "--layer", LAYER, "--hidden", tmp_path / "in.npy", "--ids", tmp_path / "ids.npy", "--weights",
                   tmp_path / "weights.npy", "--output", tmp_path / "out.npy", *split)
        assert done.returncode == 0, done.stderr
        assert np.load(tmp_path / "out.npy").tobytes() == wanted.output.data


def test_forward_takes_logits_and_bf16_bits(ctl, client, rows, tmp_path, random):
    np.save(tmp_path / "in.npy", bf16_bits(rows))
    logits = random.standard_normal((6, 8)).astype(np.float32)
    np.save(tmp_path / "logits.npy", logits)
    done = ctl("forward", "--layer", LAYER, "--hidden", tmp_path / "in.npy", "--hidden-dtype", "bf16", "--router-logits",
               tmp_path / "logits.npy", "--dtype", "f32", "--output", tmp_path / "out.npy")
    assert done.returncode == 0, done.stderr
    wanted = client.forward(layer=LAYER, hidden=tensor(bf16_values(bf16_bits(rows))), router_logits=tensor(logits))
    assert np.load(tmp_path / "out.npy").tobytes() == wanted.output.data


def test_the_written_tensor_has_the_named_dtype(ctl, rows, tmp_path):
    np.save(tmp_path / "in.npy", rows)
    folder = tmp_path / "x.npy.d"
    folder.mkdir()
    for name, words in (("a.safetensors", False), ("b.safetensors:c.npy", False), ("d.npy", True)):
        done = ctl("forward", "--layer", LAYER, "--hidden", tmp_path / "in.npy", "--dtype", "bf16", "--output", folder / name)
        assert done.returncode == 0 and ("NumPy has no bf16" in done.stdout) == words, done.stdout


WRONG = {
    "no_command": ([], 64),
    "unknown_command": (["modles"], 64),
    "unknown_flag": (["models", "--jsno"], 64),
    "no_layer": (["forward", "--hidden", "IN"], 64),
    "layer_unknown": (["forward", "--layer", "7", "--hidden", "IN"], None),
    "file_not_there": (["forward", "--layer", "1", "--hidden", "/nowhere/x.npy"], None),
    "file_is_none": (["forward", "--layer", "1", "--hidden", "NOISE"], None),
    "output_folder_not_there": (["forward", "--layer", "1", "--hidden", "IN", "--output", "/nowhere/y.npy"], None),
    "wrong_shape": (["forward", "--layer", "1", "--hidden", "NARROW"], None),
    "weights_changed": (["forward", "--layer", "1", "--hidden", "IN", "--weights-id", "1234"], None),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_is_one_line_and_an_exit_status(ctl, rows, tmp_path, name):
    arguments, status = WRONG[name]
    np.save(tmp_path / "in.npy", rows)
    np.save(tmp_path / "narrow.npy", rows[:, :-1])
    (tmp_path / "noise.npy").write_bytes(b"\x93NUMPY" + bytes(range(200)))
    files = {"IN": tmp_path / "in.npy", "NARROW": tmp_path / "narrow.npy", "NOISE": tmp_path / "noise.npy"}
    done = ctl(*[files.get(argument, argument) for argument in arguments])
    assert done.returncode == status if status else done.returncode > 0, done.stderr
    assert 0 < len(done.stderr.splitlines()) <= 4 and done.stdout == ""


def test_expertd_verify_agrees_with_the_daemon(served, case):
    done = run_program("expertd-verify", "--address", f"unix:{served.socket}", "--model", case("qwen2_moe").folder)
    assert done.returncode == 0, done.stderr + done.stdout
    other = run_program("expertd-verify", "--address", f"unix:{served.socket}", "--model", case("mixtral").folder)
    assert other.returncode != 0, "the answers agree with another checkpoint"


@pytest.mark.parametrize("command", (("models",), ("status",), ("placement", "show"), ("--help",), ("top", "--once"), ("models", "--json")))
def test_output_to_a_full_disk_fails(ctl, served, command):
    more = ("--interval", "0.05", "--http", served.http) if command[0] == "top" else ()
    with open("/dev/full", "w") as full:
        done = ctl(*command, *more, stdout=full)
    assert done.returncode == 65 and "standard output" in done.stderr, (done.returncode, done.stderr)


def test_verify_fails_if_nothing_was_compared(tmp_path, case, start_daemon):
    daemon = start_daemon("--max-request-tokens", 4, model=case("mixtral").folder)
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", case("mixtral").folder, "--tokens", "8,64")
    assert done.returncode == 64 and "takes 4 in one request" in done.stderr and "nothing was compared" in done.stderr, done.stderr


def test_the_daemon_serves_the_checkpoint_of_make_checkpoint(tmp_path, start_daemon):
    assert run_program("make-checkpoint", tmp_path / "made").returncode == 0
    daemon = start_daemon(model=tmp_path / "made")
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", tmp_path / "made",
                       *(("--tokens", "1,8") if SANITIZER else ()))
    assert done.returncode == 0, done.stderr + done.stdout
