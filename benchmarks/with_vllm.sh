#!/usr/bin/env bash
# Run a command while vLLM's own server runs a model, and stop the server whatever becomes of the command.
#   with_vllm.sh PYTHON MODEL COMMAND...    PYTHON has vLLM; MODEL is a folder
# The command finds the server's address in SERVER_URL and its name and version in SERVER_NAME.
set -euo pipefail
python=$1 model=$2
shift 2

scratch=$(mktemp -d)
server=
stop() {
  trap '' INT TERM
  if [ -n "$server" ]; then
    kill -TERM -- "-$server" 2>/dev/null || true
    for _ in $(seq 40); do kill -0 -- "-$server" 2>/dev/null || break; sleep 0.5; done
    kill -KILL -- "-$server" 2>/dev/null || true
  fi
  rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

SERVER_NAME=$("$python" -c '
from importlib import metadata
name = metadata.packages_distributions()["vllm"][0]
print(name, metadata.version(name))')
port=$("$python" -c '
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    print(free.getsockname()[1])')
SERVER_URL=http://127.0.0.1:$port
export SERVER_NAME SERVER_URL

# Small and reproducible rather than fast: float32 as in the check, nothing compiled, 1 GiB for keys and values.
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1
export VLLM_CONFIG_ROOT=$scratch/config VLLM_CACHE_ROOT=$scratch/cache
set -m # the server and its workers are a process group of their own, so that all of it can be stopped
env -u PYTHONPATH "$python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name base \
  --dtype float32 --max-model-len 256 --max-num-seqs 4 --enforce-eager --host 127.0.0.1 --port "$port" \
  >"$scratch/log" 2>&1 &
server=$!
set +m

echo "Waiting for $SERVER_NAME to load $(basename "$model") (a minute or more)" >&2
for second in $(seq "${SERVER_WAIT:-600}"); do
  if "$python" -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1] + "/v1/models", timeout=5)' "$SERVER_URL" \
    2>/dev/null; then
    "$@"
    exit
  fi
  kill -0 "$server" 2>/dev/null || break
  sleep 1
done
tail -n 30 "$scratch/log" >&2
echo "The server did not answer; above is the end of what it said. SERVER_WAIT=seconds waits longer (now $second)." >&2
exit 1
