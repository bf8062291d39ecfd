"""Configuration: flags, environment variables and the file, their precedence, and errors."""

import pathlib
import re
import subprocess

import pytest

from harness.daemon import run_program
from harness.paths import ROOT

MODEL = "synthetic:tiny"


def check_config(*arguments, **options):
    return run_program("expertd", "--check-config", *arguments, **options)


def print_config(*arguments, **options):
    done = run_program("expertd", "--print-config", *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def value_of(text, key):
    """(value, origin) of a key in the output of --print-config."""
    found = re.search(rf"^{key}: (\S+) # (.*)$", text, re.M)
    assert found, text
    return found.group(1).strip('"'), found.group(2)


def test_flag_over_variable_over_file_over_default(tmp_path):
    file = tmp_path / "expertd.yaml"
    file.write_text(f"model: {MODEL}\n# four\nshards: 4\nthreads: 3\nmax_queue: 7\n")
    text = print_config("--config", file, "--shards", 2, env={"EXPERTD_THREADS": "5", "EXPERTD_SHARDS": "3"})
    shards, threads, queue, spin = (value_of(text, key) for key in ("shards", "threads", "max_queue", "spin_us"))
    assert shards[0] == "2" and "flag" in shards[1]
    assert threads[0] == "5" and "EXPERTD_THREADS" in threads[1]
    assert queue[0] == "7" and str(file) in queue[1] and "5" in queue[1], "the origin must name the file and the line"
    assert spin == ("50", "default")


def test_a_printed_configuration_loads_to_the_same_values(tmp_path):
    first = print_config("--model", MODEL, "--shards", 2, "--max-message-bytes", "8MiB", "--listen", "127.0.0.1:0", "--listen",
                         "unix:/tmp/x.sock", "--http", "off", "--allow-uids", "0,33")
    file = tmp_path / "again.yaml"
    file.write_text(first)
    strip = lambda text: re.sub(r" # .*", "", text).split("\n# ")[0]
    again = print_config("--config", file)
    values = lambda text: [line.split(" # ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert values(again) == values(first)
    assert strip(first)


def test_a_good_configuration_is_checked_without_serving(tmp_path):
    done = check_config("--model", MODEL)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "empty.yaml"
    file.write_text(f"# only this\nmodel: {MODEL}\n")
    assert check_config("--config", file).returncode == 0


USAGE = {
    "unknown_flag": (["--shrads", "2"], "--shards"),
    "no_value": (["--model"], "--model"),
    "not_a_number": (["--shards", "two"], "--shards"),
    "negative": (["--threads", "-1"], "--threads"),
    "zero_shards": (["--shards", "0"], "--shards"),
    "more_threads_than_a_team_has": (["--threads", "1025"], "1024"),
    "too_many": (["--shards", "99999999999"], "--shards"),
    "bad_dtype": (["--compute-dtype", "f64"], "f32"),
    "bad_address": (["--listen", "nowhere"], "--listen"),
    "bad_port": (["--listen", "127.0.0.1:99999"], "99999"),
    "stray_word": (["serve"], "serve"),
    "twice": (["--shards", "1", "--shards", "2"], "twice"),
    "layers_backwards": (["--layers", "5-2"], "5-2"),
    "unknown_kernels": (["--kernels", "mmx"], "mmx"),
    "no_device": (["--device", "gpu"], "sim:N"),
    "bad_uids": (["--allow-uids", "root"], "root"),
    "message_too_small": (["--max-message-bytes", "1"], "--max-message-bytes"),
    "two_modes": (["--verify"], "--verify and --check-config are given"),
    "counts_unread": (["--placement-counts", "f"], "placement_counts is set (flag --placement-counts), but placement is contiguous"),
    "cache_unread": (["--tuning-cache", "f"], "tuning_cache is set (flag --tuning-cache), but tuning is heuristic"),
}


@pytest.mark.parametrize("options", (("--print-config",), ("--check-config",), ("--help",), ("--version",)))
def test_a_full_disk_fails_the_printing_options(options):
    with open("/dev/full", "w") as full:
        done = run_program("expertd", "--model", MODEL, *options, stdout=full)
    assert done.returncode == 69 and "standard output" in done.stderr, done.stderr


@pytest.mark.parametrize("name", USAGE)
def test_a_wrong_command_line_exits_64_and_names_the_cause(name):
    arguments, named = USAGE[name]
    model = [] if name == "no_value" else ["--model", MODEL]
    done = check_config(*model, *arguments)
    assert done.returncode == 64, done.stderr
    assert named in done.stderr and len(done.stderr.splitlines()) <= 3


@pytest.mark.parametrize("modes", (("--inspect", "--verify"), ("--print-config", "--verify"), ("--inspect", "--print-config")))
def test_two_modes_contradict_each_other(modes):
    done = run_program("expertd", "--model", MODEL, *modes)
    assert done.returncode == 64 and all(mode in done.stderr for mode in modes), done.stderr
    assert done.stdout == ""


FILES = {
    "unknown_key": ("model: {m}\nshards: 1\nmax_quue: 5\n", "unknown key max_quue (line 3): did you mean max_queue?"),
    "key_twice": ("model: {m}\nshards: 1\nshards: 2\n", "line 3"),
    "wrong_type": ("model: {m}\nshards: [1, 2]\n", "shards (line 2)"),
    "mapping": ("model: {m}\nthreads:\n  a: 1\n", "threads (line 2)"),
    "not_a_number": ("model: {m}\nthreads: many\n", "line 2"),
    "out_of_range": ("model: {m}\n\nshards: 1025\n", "line 3"),
    "not_yaml": ("model: {m}\nlisten: [broken\n", "line"),
    "a_list": ("- model\n", "line 1"),
    "no_value": ("model: {m}\nshards:\n", "line 2"),
    "alias": ("model: &a {m}\nhttp: *a\n", "line 1"),
    "binary": ("model: {m}\nshards: \x00\x01\n", ""),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_exits_78_and_names_the_line(name, tmp_path):
    text, named = FILES[name]
    file = tmp_path / "expertd.yaml"
    file.write_text(text.replace("{m}", MODEL))
    done = check_config("--config", file)
    assert done.returncode == 78, done.stderr
    assert named in done.stderr and str(file) in done.stderr


def test_a_file_that_is_not_there_exits_78(tmp_path):
    done = check_config("--config", tmp_path / "none.yaml")
    assert done.returncode == 78 and "none.yaml" in done.stderr


def test_a_wrong_variable_exits_78_and_is_named():
    done = check_config("--model", MODEL, env={"EXPERTD_SHARDS": "few"})
    assert done.returncode == 78 and "EXPERTD_SHARDS" in done.stderr
    done = check_config("--model", MODEL, env={"EXPERTD_SHRADS": "1"})
    assert done.returncode == 78 and "EXPERTD_SHRADS" in done.stderr and "EXPERTD_SHARDS" in done.stderr


def test_no_model_is_a_wrong_command_line():
    done = run_program("expertd", "--listen", "127.0.0.1:0", "--http", "off")
    assert done.returncode == 64 and "--model" in done.stderr


def test_an_unknown_preset_exits_78_with_the_known_ones():
    done = run_program("expertd", "--model", "synthetic:qwen9", "--http", "off", "--listen", "127.0.0.1:0")
    assert done.returncode == 78 and "qwen3-30b-a3b" in done.stderr


def test_check_config_accepts_synthetic_models_and_names_a_missing_model():
    for arguments, named in ((("synthetic:qwen9",), "qwen3-30b-a3b"), (("synthetic:tiny,layers=99",), "layers=99"),
                             (("synthetic:tiny", "--layers", "0-99"), "0-3")):
        done = check_config("--model", *arguments)
        assert done.returncode == 78 and named in done.stderr, (arguments, done.stderr)
    done = check_config("--shards", 1)
    assert done.returncode == 0 and "--model" in done.stdout


def test_layers_past_the_models_last_are_refused_with_the_existing_range(case):
    for model, layers, there in (("synthetic:tiny", "0-99", "0-3"), (case("mixtral").folder, "0-2", "0-1")):
        done = run_program("expertd", "--model", str(model), "--layers", layers, "--http", "off", "--listen", "127.0.0.1:0")
        assert done.returncode == 78, done.stderr
        assert f"layers {layers}" in done.stderr and there in done.stderr, done.stderr


def test_a_model_that_does_not_fit_is_refused_with_the_number_of_layers_that_would():
    done = run_program("expertd", "--model", "synthetic:qwen3-30b-a3b", "--memory-max", "4GiB", "--http", "off", "--listen",
                       "127.0.0.1:0")
    assert done.returncode in (69, 78), done.stderr
    assert re.search(r"\b3 layers\b|layers=3\b", done.stderr), done.stderr  # 1.21 GB each


def test_scratch_that_does_not_fit_is_refused_before_loading():
    """Scratch is reserved without being touched, so without this check the OOM killer would end the daemon under load."""
    available = int(re.search(r"^MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.M).group(1)) << 10
    if available > 120 << 30:
        pytest.skip("this machine has the memory for the largest batches")
    done = run_program("expertd", "--model", "synthetic:kimi-k2,layers=1,experts=8", "--max-batch-tokens", 1 << 20, "--max-queue-bytes",
                       "64GiB", "--http", "off", "--listen", "127.0.0.1:0")
    assert done.returncode == 69, done.stderr
    assert "a batch's scratch" in done.stderr and "max_batch_tokens" in done.stderr, done.stderr
    assert "event=loaded" not in done.stderr


@pytest.mark.parametrize("program", ["expertd", "expertctl", "expertd-verify", "make-checkpoint"])
def test_help_describes_the_program(program):
    done = run_program(program, "--help")
    assert done.returncode == 0 and "sage" in done.stdout and program in done.stdout


def test_version_is_one_line():
    done = run_program("expertd", "--version")
    assert done.returncode == 0 and re.fullmatch(r"expertd \d+\.\d+\.\d+.*\n", done.stdout)


def test_every_option_of_the_help_has_a_key_in_print_config():
    flags = set(re.findall(r"^\s+--([a-z0-9-]+)", run_program("expertd", "--help").stdout, re.M))
    keys = set(re.findall(r"^#? ?([a-z0-9_]+):", print_config("--model", MODEL), re.M))
    switches = {"help", "version", "check-config", "print-config", "inspect", "json", "verify"}
    assert {flag.replace("-", "_") for flag in flags - switches} == keys


def test_every_option_of_the_help_is_in_the_pages_and_the_fuzzers_dictionary():
    flags = re.findall(r"^\s+(--[a-z0-9-]+)", run_program("expertd", "--help").stdout, re.M)
    page = (ROOT / "docs" / "operate.md").read_text()
    words = (ROOT / "tests" / "fuzz" / "options.dict").read_text()
    assert len(flags) > 40
    assert [flag for flag in flags if not re.search(rf"`{flag}\b(?!-)", page)] == []
    assert [flag for flag in flags if f'"{flag[2:].replace("-", "_")}"' not in words] == []


def test_output_to_a_closed_pipe_does_not_crash():
    process = subprocess.Popen(["sh", "-c", "\"$0\" --help | true", run_program.__globals__["BIN"] / "expertd"])
    assert process.wait(20) == 0


def test_the_help_and_the_page_name_every_variable_of_the_cache():
    """The rows of hub_cache.c are what the daemon does."""
    source = (ROOT / "daemon/config/hub_cache.c").read_text()
    variables = [name for name in re.findall(r'^    \{"([A-Z_]+)", "', source, re.M) if name != "HOME"]
    assert len(variables) == 7
    help_text = run_program("expertd", "--help").stdout
    row = next(line for line in (ROOT / "docs/operate.md").read_text().splitlines() if line.startswith("| `--hf-cache DIR`"))
    assert all(f"${name}" in help_text and f"${name}" in row for name in variables)
