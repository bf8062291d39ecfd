"""expertd-bench: its arguments, the structure of its JSON, and its errors. No test asserts a speed."""

import json
import os
import subprocess

import pytest

from harness.paths import BIN, SLOW

QUICK = ("--shape", "tiny", "--seconds", "0.01")
SMALL = (*QUICK, "--weights-mib", "1")
FIGURES = ("gflops", "gbytes_per_s", "ratio_to_peak", "ratio_to_read", "ratio_to_roof")


def bench(*arguments):
    return subprocess.run([BIN / "expertd-bench", *arguments], capture_output=True, text=True, timeout=60 * SLOW)


def rows_of(*arguments):
    done = bench(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["machine"]["cpus"] >= 1 and answer["machine"]["backend"]
    for row in answer["rows"]:
        assert all(row[figure] > 0 for figure in FIGURES), row
        assert row["ratio_to_roof"] >= max(row["ratio_to_peak"], row["ratio_to_read"]) * (1 - 1e-9)
        assert row["repetitions"] >= 5
        # The reference loops really computed and read: a loop that the compiler removed would seem a million times faster.
        assert row["peak_gflops"] < 1e6 and row["read_gbytes_per_s"] < 1e5, row
    return answer["rows"]


def test_kernels_gives_a_row_for_each_shape_dtype_and_number_of_threads():
    rows = rows_of("kernels", *SMALL, "--dtype", "f32,bf16", "--threads", "1,2")
    assert [(row["shape"], row["dtype"], row["threads"]) for row in rows] == [
        ("tiny", "f32", 1), ("tiny", "bf16", 1), ("tiny", "f32", 2), ("tiny", "bf16", 2)]


def test_kernels_measures_the_named_backend():
    done = bench("kernels", *SMALL, "--dtype", "f32", "--kernels", "scalar", "--json")
    assert json.loads(done.stdout)["machine"]["backend"] == "scalar"


@pytest.mark.parametrize("op, dtypes", [
    ("gmm", "i8"),
    ("gmm-plain", "bf16,f32,f16,i8"),
    ("gmm-plain --transposed", "bf16,f32,f16,i8"),
    ("tgmm", "bf16,f32,f16,i8"),
    ("grouped-gemm", "bf16,f32,f16,i8,e4m3-128x128,mxfp8"),
    ("grouped-gemm --transposed", "bf16,e4m3-128x128,mxfp8,mxfp4"),
])
def test_kernels_measures_every_operation_with_its_operand_dtypes(op, dtypes):
    rows = rows_of("kernels", *SMALL, "--op", *op.split(), "--dtype", dtypes)
    assert [row["dtype"] for row in rows] == dtypes.split(",")


@pytest.mark.parametrize("out", ["f32", "bf16", "f16"])
def test_kernels_writes_results_in_the_named_dtype(out):
    rows = rows_of("kernels", *SMALL, "--out", out, "--dtype", "bf16,mxfp4,i8")
    assert [row["dtype"] for row in rows] == ["bf16", "mxfp4", "i8"]
    assert {row["shape"] for row in rows} == {f"tiny {out.upper()}"}


@pytest.mark.parametrize("wrong", [
    ("kernels", "--op", "tgmm", "--out", "bf16"), ("kernels", "--out", "i8"), ("layer", "--out", "bf16")])
def test_an_invalid_output_dtype_is_refused(wrong):
    done = bench(*wrong)
    assert done.returncode == 64 and ("--out" in done.stderr or "dtype of results i8" in done.stderr), done.stderr


def test_weights_are_packed_in_the_named_layout():
    for layout in "best", "panels":
        assert len(rows_of("kernels", *SMALL, "--layout", layout, "--dtype", "bf16,f32,i8")) == 3
        done = bench("pack", "--dtype", "bf16", "--seconds", "0.01", "--layout", layout)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("wrong", [
    ("kernels", "--layout", "rows"), ("layer", "--layout", "slices"), ("kernels", "--op", "gmm-plain", "--layout", "panels"),
    ("kernels", *SMALL, "--kernels", "scalar", "--layout", "slices"),
    ("kernels", *SMALL, "--kernels", "scalar", "--layout", "wide-slices"),
    ("pack", "--dtype", "bf16", "--kernels", "scalar", "--layout", "slices")])
def test_an_unavailable_layout_is_refused(wrong):
    done = bench(*wrong)
    assert done.returncode == 64 and "layout" in done.stderr, done.stderr


def test_tune_refuses_a_cache_that_is_not_a_file_at_once(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for wrong in tmp_path, fifo:
        done = bench("tune", *SMALL, "--dtype", "f32", "--cache", wrong)
        assert done.returncode != 0 and str(wrong) in done.stderr and "..." not in done.stderr, done.stderr
    assert fifo.is_fifo() and list(tmp_path.iterdir()) == [fifo]


def test_an_unusable_tuning_file_stays_until_it_is_replaced(tmp_path):
    cache = tmp_path / "tuning"
    cache.write_text("damaged")
    done = bench("tune", *SMALL, "--dtype", "nosuch", "--cache", cache)
    assert done.returncode == 64 and cache.read_text() == "damaged"
    tuning = subprocess.Popen([BIN / "expertd-bench", "tune", "--shape", "tiny", "--seconds", "60", "--dtype", "f32", "--cache", cache],
                              stderr=subprocess.PIPE, text=True)
    assert "not used" in tuning.stderr.readline()
    assert "..." in tuning.stderr.readline(), "tune must have begun to measure"
    tuning.kill()
    tuning.communicate()
    assert cache.read_text() == "damaged"


@pytest.mark.release
def test_pack_measures_the_packing_of_a_dtype():
    done = bench("pack", "--seconds", "0.01", "--dtype", "fp4", "--threads", "2", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["dtype"], row["threads"]) == ("fp4", 2)
    assert row["gbytes_per_s"] > 0 and row["ratio_to_read"] > 0 and row["gflops"] == 0
    refused = bench("pack", "--dtype", "fp5")
    assert refused.returncode == 64 and "fp5" in refused.stderr


def test_kernels_measures_the_slowdown_by_a_busy_neighbour():
    rows = rows_of("kernels", *SMALL, "--dtype", "bf16", "--threads", "1,2", "--busy-neighbour")
    assert [row["threads"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 < row["neighbour_leaves"] <= 1 and row["ratio_beside_neighbour"] > 0
    assert "ratio_beside_neighbour" not in rows_of("kernels", *SMALL, "--dtype", "bf16")[0]


def test_layer_gives_a_row_for_each_number_of_tokens():
    rows = rows_of("layer", *QUICK, "--tokens", "1,8")
    assert [(row["shape"], row["tokens"]) for row in rows] == [("tiny T=1", 1), ("tiny T=8", 8)]
    for row in rows:
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["seconds"])
        assert set(row["shares"]) == {"hidden", "router", "plan", "dispatch", "gate_up", "down", "shared", "combine"}
        assert all(0 <= share < 1 for share in row["shares"].values()) and row["shares"]["router"] > 0
        assert 0.5 < sum(row["shares"].values()) <= 1


def test_without_json_it_prints_a_table_and_progress_on_standard_error():
    done = bench("kernels", *SMALL, "--dtype", "bf16")
    assert done.returncode == 0
    assert "OF ROOF" in done.stdout and "tiny" in done.stdout.splitlines()[-1]
    assert "tiny bf16" in done.stderr and "{" not in done.stdout


FORMATS = ("i8", "e4m3-128x128", "e4m3-row", "mxfp8", "mxfp4", "nvfp4", "int4-32", "int4-128", "int8-128")


def test_kernels_measures_quantised_weights():
    rows = rows_of("kernels", *SMALL, "--dtype", ",".join(FORMATS))
    assert [row["dtype"] for row in rows] == list(FORMATS)


def tune(*arguments):
    return bench("tune", *SMALL, *arguments)


def test_tune_reports_a_schedule_that_is_never_slower_than_the_default():
    done = tune("--dtype", "bf16,f32", "--threads", "1,2", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["dtype"], row["threads"]) for row in rows] == [("bf16", 1), ("f32", 1), ("bf16", 2), ("f32", 2)]
    for row in rows:
        assert row["candidates"] >= 4 and row["rounds"] >= 3
        assert 0 < row["best_seconds"] <= row["heuristic_seconds"] and row["gain"] >= 1
        assert row["call_rows"] >= 1 and row["run_bytes"] >= 1 and row["tasks_per_thread"] >= 1


def test_tune_adds_to_its_file_and_replaces_what_it_finds_again(tmp_path):
    cache = tmp_path / "tuning"
    backend = ("--kernels", "scalar")  # auto might choose another backend next time
    for dtypes, count in (("bf16", 1), ("f32", 2), ("f32,bf16", 2)):
        done = tune("--dtype", dtypes, "--cache", cache, *backend)
        assert done.returncode == 0 and "not used" not in done.stderr
        head, cpu, chosen, *schedules, end = cache.read_text().splitlines()
        assert head == "expertd-tuning 2" and cpu.startswith("cpu ") and chosen == "kernels scalar"
        assert len(schedules) == count and end.startswith(f"end {count} ")
    assert list(tmp_path.iterdir()) == [cache]


@pytest.mark.parametrize("damage, word", [
    (lambda text: text[:-4], "cut short"),
    (lambda text: text.replace("call_rows=", "call_rows=1"), "damaged"),
    (lambda text: "", "cut short"),
])
def test_tune_reports_a_damaged_file_and_replaces_it(tmp_path, damage, word):
    cache = tmp_path / "tuning"
    tune("--dtype", "bf16,f32", "--cache", cache, "--kernels", "scalar")
    cache.write_text(damage(cache.read_text()))
    done = tune("--dtype", "f32", "--cache", cache, "--kernels", "scalar")
    assert done.returncode == 0
    assert "not used" in done.stderr and word in done.stderr and str(cache) in done.stderr
    assert cache.read_text().splitlines()[-1].startswith("end 1 ")


def test_tune_names_a_file_that_it_cannot_write(tmp_path):
    done = tune("--dtype", "f32", "--cache", tmp_path / "none" / "tuning")
    assert done.returncode != 0 and str(tmp_path / "none") in done.stderr


def test_list_names_the_values_of_shape_and_dtype():
    shapes = bench("kernels", "--list").stdout
    assert all(f"\n{name} " in shapes for name in ("a512", "a2048-zipf", "b2048", "c1", "c8", "cmix", "d64", "rows4"))
    dtypes = [line for line in shapes.splitlines() if line.startswith("dtypes")]
    assert len(dtypes) == 2 and all(" bf16" in line for line in dtypes) and all(f" {name}*" in shapes for name in FORMATS)
    assert all(f" {name}" in dtypes[1] for name in ("e4m3-128x128", "e4m3-by-e4m3"))
    assert "mixtral-8x7b" in bench("layer", "--list").stdout


@pytest.mark.parametrize("arguments, code, words", [
    ((), 64, ("command is missing",)),
    (("kernel",), 64, ("kernel", "did you mean kernels")),
    (("kernels", "layer"), 64, ("one command",)),
    (("kernels", "--shap", "a512"), 64, ("--shap", "did you mean --shape")),
    (("kernels", "--shape", "a51"), 64, ("a51", "did you mean a512")),
    (("kernels", "--shape", "a512,"), 64, ("--shape 'a512,'",)),
    (("kernels", "--dtype", "bf17"), 64, ("bf17", "did you mean bf16")),
    (("kernels", "--threads", "0"), 64, ("--threads 0", "1 to 1024")),
    (("kernels", "--threads", "1,x"), 64, ("--threads x",)),
    (("kernels", "--seconds", "-1"), 64, ("--seconds -1",)),
    (("kernels", "--seconds"), 64, ("takes a value",)),
    (("kernels", "--json=1"), 64, ("takes no value",)),
    (("kernels", "--weights-mib", "12k"), 64, ("'k'",)),
    (("kernels", "--op", "tgm"), 64, ("tgm", "did you mean tgmm")),
    (("kernels", "--op", "tgmm", "--transposed"), 64, ("--transposed",)),
    (("kernels", "--dtype", "f16"), 64, ("f16", "--op gmm-plain")),
    (("kernels", "--op", "gmm-plain", "--dtype", "mxfp8"), 64, ("mxfp8", "--op grouped-gemm")),
    (("kernels", "--op", "grouped-gemm", "--dtype", "mxfp4"), 64, ("mxfp4", "--transposed")),
    (("tune", "--op", "tgmm"), 64, ("--op", "kernels")),
    (("kernels", "--tokens", "3"), 64, ("--tokens", "layer")),
    (("kernels", "--cache", "x"), 64, ("--cache", "tune")),
    (("layer", "--weights-mib", "8"), 64, ("--weights-mib", "kernels and tune")),
    (("pack", "--shape", "a512"), 64, ("--shape", "kernels, layer and tune")),
    (("kernels", "--kernels", "sse9"), 78, ("sse9", "scalar")),
    (("layer", "--shape", "qwen"), 64, ("qwen", "--list")),
    (("layer", "--dtype", "f64"), 64, ("f64",)),
])
def test_a_wrong_command_line_is_refused_with_the_remedy(arguments, code, words):
    done = bench(*arguments)
    assert done.returncode == code
    assert all(word in done.stderr for word in words), done.stderr
    assert done.stdout == ""


def test_too_large_operands_are_refused_with_figures_before_measuring():
    done = bench("kernels", "--shape", "tiny,a512", "--dtype", "f32", "--weights-mib", str(1 << 20))
    assert done.returncode == 69
    assert "1.0 TiB" in done.stderr and "--weights-mib" in done.stderr
    assert "..." not in done.stderr


# ---- simulated devices: every step works; the figures tell nothing about a GPU


@pytest.mark.release
def test_kernels_on_a_device_are_compared_with_the_devices_peak():
    done = bench("kernels", "--device", "sim", "--seconds", "0.01", "--dtype", "bf16,f32,e4m3-128x128,mxfp4", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "simulated" in answer["machine"]["backend"] and answer["machine"]["backend"].startswith("sim")
    assert [row["dtype"] for row in answer["rows"]] == ["bf16", "f32", "e4m3-128x128", "mxfp4"]
    assert [row["peak"] for row in answer["rows"]] == ["WGMMA", "FFMA", "WGMMA", "WGMMA"]
    for row in answer["rows"]:
        assert row["shape"].startswith("tiny ") and all(row[figure] > 0 for figure in FIGURES), row


@pytest.mark.release
def test_layer_on_a_device_measures_complete_layers():
    done = bench("layer", "--device", "sim", "--tokens", "1,3", "--seconds", "0.01", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["shape"] for row in rows] == ["tiny T=1", "tiny T=3"]
    assert all(row["tokens_per_s"] > 0 and row[figure] > 0 for row in rows for figure in FIGURES)


@pytest.mark.parametrize("arguments, status, words", [
    (("kernels", "--device", "sim", "--shape", "a512"), 64, ("a512", "simulated")),
    (("layer", "--device", "sim", "--shape", "qwen3-30b-a3b"), 64, ("qwen3-30b-a3b", "simulated")),
    (("kernels", "--device", "sim:2"), 64, ("only one device",)),
    (("kernels", "--device", "sim", "--dtype", "i8"), 64, ("i8",)),
    (("kernels", "--device", "sim", "--threads", "2"), 64, ("--threads",)),
    (("tune", "--device", "sim"), 64, ("--device",)),
    (("kernels", "--device", "gpu"), 78, ("gpu", "cuda")),
])
def test_options_that_devices_lack_are_refused(arguments, status, words):
    done = bench(*arguments)
    assert done.returncode == status and all(word in done.stderr for word in words), done.stderr
