"""Models in a local Hugging Face cache: variables, revisions, links and unfinished downloads."""

import pytest

from harness.daemon import run_program
from harness.paths import GOLDENS
from harness.tensors import error_per_token, tensor, values_of

CASE, MODEL, FOLDER = "qwen3_moe_sharded", "Acme/Tiny-MoE", "models--Acme--Tiny-MoE"
OLD, NEW = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"


class Cache:
    """A repository as huggingface_hub writes it: blobs, snapshots of links to them, refs."""

    def __init__(self, folder):
        self.folder, self.repository = folder, folder / FOLDER
        (self.repository / "blobs").mkdir(parents=True)
        (self.repository / "refs").mkdir()

    def add(self, commit, leave_out=()):
        snapshot = self.repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for source in (GOLDENS / CASE).iterdir():
            if source.name != "golden.safetensors" and source.name not in leave_out:
                (self.repository / "blobs" / source.name).write_bytes(source.read_bytes())
                (snapshot / source.name).symlink_to(f"../../blobs/{source.name}")
        return snapshot

    def ref(self, name, commit):
        file = self.repository / "refs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(commit)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "hf" / "hub")


@pytest.fixture
def serve(case, start_daemon):
    def check(model, arguments=(), **env):
        golden = case(CASE)
        daemon = start_daemon("--compute-dtype", "f32", *arguments, model=model, env=env)
        with daemon.client() as client:
            assert client.describe().models[0].name == MODEL
            answer = client.forward(layer=0, hidden=tensor(golden.get(0, "input")))
            assert error_per_token(values_of(answer.output), golden.get(0, "output")).max() <= golden.bound("f32")

    return check


def refused(model, *named, arguments=(), **env):
    done = run_program("expertd", "--model", model, "--listen", "127.0.0.1:0", "--http", "off", *arguments, env=env)
    assert done.returncode == 65, done.stderr
    for word in named:
        assert word in done.stderr, f"{word!r} is not named in\n{done.stderr}"


@pytest.mark.parametrize("variables", ({"HF_HUB_CACHE": "{}/hf/hub"}, {"HUGGINGFACE_HUB_CACHE": "{}/hf/hub"}, {"HF_HOME": "{}/hf"},
                                       {"HF_HOME": "~/hf", "HOME": "{}"}, {"HF_HOME": "$BASE/hf", "BASE": "{}"},
                                       {"HF_HUB_CACHE": "", "HF_HOME": "${{BASE}}/hf", "BASE": "{}"},
                                       {"TRANSFORMERS_CACHE": "{}/hf/hub"}), ids=lambda v: "-".join(v))
def test_the_cache_is_found_by_its_variables(cache, tmp_path, serve, variables):
    cache.add(NEW)
    cache.ref("main", NEW + "\n")
    serve(MODEL, **{name: value.format(tmp_path) for name, value in variables.items()})


def test_a_revision_is_served(cache, serve):
    cache.add(OLD)
    cache.add(NEW, leave_out=("config.json",))
    cache.ref("main", NEW)
    cache.ref("v1.0", OLD)
    cache.ref("refs/pr/7", OLD)
    for revision in ("v1.0", "refs/pr/7", OLD, OLD[:7]):
        serve(f"{MODEL}@{revision}", HF_HUB_CACHE=str(cache.folder))
    refused(MODEL, NEW, "has no config.json", f"hf download {MODEL} --revision {NEW}", OLD, HF_HUB_CACHE=str(cache.folder))
    refused(f"{MODEL}@v2", "v2", "v1.0", f"hf download {MODEL} --revision v2", HF_HUB_CACHE=str(cache.folder))


def test_an_unfinished_download_says_what_is_missing_and_how_to_get_it(cache):
    shard = "model-00002-of-00003.safetensors"
    cache.add(NEW, leave_out=(shard,))
    cache.ref("main", NEW)
    env = {"HF_HUB_CACHE": str(cache.folder)}
    refused(MODEL, shard, "1 of 3 shards are missing", f"hf download {MODEL} --revision {NEW}", **env)
    (cache.repository / "blobs" / "0123.incomplete").write_bytes(b"")
    refused(MODEL, shard, "a download is under way", "0123.incomplete", **env)


def test_a_configuration_that_was_not_downloaded_says_how_to_get_it(cache):
    cache.add(NEW)
    cache.ref("main", NEW)
    (cache.repository / "blobs" / "config.json").rename(cache.repository / "blobs" / "abc.incomplete")
    refused(MODEL, "config.json", "target of this link", "found abc.incomplete", f"finish it (hf download {MODEL} --revision {NEW})",
            HF_HUB_CACHE=str(cache.folder))


def test_a_snapshot_of_the_configuration_alone_names_the_other(cache):
    """Programs that look for updates download config.json of the newest commit."""
    cache.add(OLD)
    cache.add(NEW, leave_out=[f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)] + ["model.safetensors.index.json"])
    cache.ref("main", NEW)
    refused(MODEL, "neither model.safetensors nor", OLD, NEW, HF_HUB_CACHE=str(cache.folder))


def test_another_case_is_suggested(cache):
    cache.add(NEW)
    refused("acme/tiny-moe", MODEL, "did you mean", HF_HUB_CACHE=str(cache.folder))


def test_folders_of_the_cache_are_explained(cache):
    cache.add(NEW)
    cache.ref("main", NEW)
    refused(cache.repository, f"--model {MODEL}", f"--hf-cache {cache.folder}", NEW)
    refused(cache.folder, f"--hf-cache {cache.folder}", MODEL)
    refused(cache.folder.parent, f"--hf-cache {cache.folder}")
    refused(MODEL, f"use --hf-cache {cache.folder}", arguments=("--hf-cache", cache.folder.parent))


def test_a_snapshot_may_lie_elsewhere(cache, tmp_path, serve):
    """The repository's folder, the snapshot and its files may be links."""
    snapshot = cache.add(NEW)
    cache.ref("main", NEW)
    moved = tmp_path / "other-disk"
    (cache.repository / "blobs").rename(moved)
    (cache.repository / "blobs").symlink_to(moved)
    snapshot.rename(tmp_path / "snapshot")
    snapshot.symlink_to(tmp_path / "snapshot")
    for file in (tmp_path / "snapshot").iterdir():  # relative links would now lead nowhere
        file.unlink()
        file.symlink_to(moved / file.name)
    serve(MODEL, HF_HUB_CACHE=str(cache.folder))
    (moved / "model-00001-of-00003.safetensors").unlink()
    refused(MODEL, "model-00001-of-00003.safetensors", "a link to a file that is not there", HF_HUB_CACHE=str(cache.folder))
