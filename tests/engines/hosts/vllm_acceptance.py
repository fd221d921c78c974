#!/usr/bin/env python3
"""Counts how many drafted tokens the real vLLM accepts, for many drafters of one verifier.

Runs in an environment with vLLM, on the CPU, and reads one JSON job on standard input::

    {"verifier": DIR, "prompts": [[ids], ...], "tokens": 10, "draft_tokens": 3, "results": FILE, "workers": 2,
     "timeout": 240, "cases": [{"name": NAME, "drafter": DIR, "alone": false}, ...]}

``alone`` gives vLLM the drafter's folder as its model, with nothing else: its config then names the verifier.
FILE becomes one JSON object::

    {"release": "0.32.0", "cases": {NAME: {"accepted": 1, "drafts": 1, "draft_tokens": 3, "per_position": [1, 0, 0],
     "output": "sha256 of the output tokens", "warnings": [...], "error": null, "seconds": 5.0}}}

vLLM is imported once; every case runs in a child process of its own, so that no engine sees another one's traces and
a child that dies or hangs costs one case. The counts are exact, and the same in every run: float32, one thread.
"""

import gc
import hashlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in this process, where its counts can be read
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="WARNING",
    OMP_NUM_THREADS="1",  # the order of summation may depend on it
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    CUDA_VISIBLE_DEVICES="",
)

import torch
from vllm import LLM, SamplingParams, __version__  # type: ignore[import-not-found, unused-ignore]

Case = dict[str, Any]


def measure(job: dict[str, Any], case: Case) -> dict[str, Any]:
    """Serves the case's drafter, and counts."""
    engine: dict[str, Any] = {
        "model": case["drafter"] if case.get("alone") else job["verifier"],
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "disable_log_stats": False,  # the counts are statistics
        "seed": 0,
    }
    if not case.get("alone"):
        engine["speculative_config"] = {
            "method": "eagle3",
            "model": case["drafter"],
            "num_speculative_tokens": job.get("draft_tokens", 3),
        }
    llm = LLM(**engine)
    greedy = SamplingParams(temperature=0.0, max_tokens=job["tokens"], ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], greedy, use_tqdm=False)
    output = [list(answer.outputs[0].token_ids) for answer in answers]
    found = {metric.name.removeprefix("vllm:spec_decode_num_"): metric for metric in llm.get_metrics()}
    return {
        "accepted": found["accepted_tokens"].value,
        "drafts": found["drafts"].value,
        "draft_tokens": found["draft_tokens"].value,
        "per_position": list(found["accepted_tokens_per_pos"].values),
        "output": hashlib.sha256(json.dumps(output).encode()).hexdigest(),
        "error": None,
    }


def run_case(job: dict[str, Any], case: Case, result: Path) -> None:
    """The child: measures and writes what it found, an error included."""
    warnings: list[str] = []
    make_record = logging.getLogRecordFactory()

    def noting(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = make_record(*arguments, **options)
        if record.levelno >= logging.WARNING and record.name.startswith("vllm"):
            warnings.append(record.getMessage()[:300])
        return record

    logging.setLogRecordFactory(noting)  # vLLM sets up its handlers anew while an engine starts
    torch.set_num_threads(1)
    begun = time.monotonic()
    try:
        found = measure(job, case)
    except BaseException as error:  # whatever stops the engine is the result
        found = {"error": f"{type(error).__name__}: {error}"[:1000]}
    found |= {"warnings": list(dict.fromkeys(warnings)), "seconds": round(time.monotonic() - begun, 1)}
    result.write_text(json.dumps(found), encoding="utf-8")


def start(job: dict[str, Any], case: Case, result: Path) -> int:
    """Forks the child of a case; its talk goes beside its result."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    os.setsid()
    log = os.open(result.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    run_case(job, case, result)
    os._exit(0)  # without the engine's own goodbyes, which can hang


def run_all(job: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """The results of all cases, by name; ``workers`` of them run at a time."""
    waiting = list(enumerate(job["cases"]))
    running: dict[int, tuple[Case, Path, float]] = {}
    results: dict[str, Any] = {}
    while waiting or running:
        while waiting and len(running) < job.get("workers", 2):
            number, case = waiting.pop(0)
            result = scratch / f"{number}.json"
            running[start(job, case, result)] = (case, result, time.monotonic())
        time.sleep(0.05)
        for child, (case, result, begun) in list(running.items()):
            gone, status = os.waitpid(child, os.WNOHANG)
            if not gone and time.monotonic() - begun > job.get("timeout", 240):
                os.killpg(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                gone = child
            if gone:
                del running[child]
                dead = {"error": f"the process ended with status {status} and no result", "warnings": []}
                results[case["name"]] = json.loads(result.read_text()) if result.is_file() else dead
                print(case["name"], json.dumps(results[case["name"]]), flush=True)
    return results


def main() -> None:
    """Reads the job, runs it and writes the results file whole."""
    job = json.load(sys.stdin)
    target = Path(job["results"])
    scratch = target.with_name(target.name + ".cases")
    scratch.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # the children need not look through all that was imported
    results = {"release": __version__, "cases": run_all(job, scratch)}
    whole = target.with_name(target.name + ".part")
    whole.write_text(json.dumps(results, indent=1), encoding="utf-8")
    whole.replace(target)


if __name__ == "__main__":
    main()
