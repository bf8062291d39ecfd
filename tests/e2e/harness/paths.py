"""Paths, and how much slower the build under test is than a release build."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = (ROOT / os.environ.get("EXPERTD_TEST_BUILD", "build")).resolve()
BIN = BUILD / "bin"
GOLDENS = ROOT / "tests" / "goldens" / "layers"

SANITIZER = next((name for name in ("asan", "tsan") if name in BUILD.name), "")
# Factor for the timeouts of tests.
SLOW = {"": 1, "asan": 4, "tsan": 10}[SANITIZER]

# EXPERTD_DEVICE=cuda runs the tests of answers on a GPU instead of a simulated one.
DEVICE = "cuda" if os.environ.get("EXPERTD_DEVICE", "").startswith("cuda") else "sim"

# The golden cases that tests serve.
SERVED_CASES = ("mixtral", "mixtral_one_token", "qwen2_moe", "qwen3_moe_sharded", "qwen3_5_moe", "olmoe", "deepseek_v3",
                "gpt_oss", "llama4", "ernie4_5_moe", "glm4_moe", "granitemoe_f16", "hunyuan_v1_moe", "phimoe", "deepseek_v3_fp8", "gpt_oss_mxfp4", "kimi_k2_int4", "mixtral_awq")
