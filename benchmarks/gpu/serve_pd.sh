#!/bin/bash
# Start Ray on this GPU machine and run the phases: serve_pd.sh WORK MODELS CONFIGS PHASES.json OUT.jsonl [--only NAME ...]
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$1 models=$2 configs=$3 phases=$4 out=$5
shift 5
mkdir -p "$work/ray"
export PYTHONPATH="$here/probe:${PYTHONPATH:-}" PROBE_FILE="$work/serve.probe" PROBE_LOCK="$work/serve.lock"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 PYTHONUNBUFFERED=1
export RAY_USAGE_STATS_ENABLED=0 RAY_metrics_report_interval_ms=1000 RAY_TMPDIR="$work/ray" NIXL_LOG_LEVEL=INFO
export VLLM_SSM_CONV_STATE_LAYOUT=DS VLLM_RAY_PER_WORKER_GPUS=0.5 VLLM_HOST_IP=127.0.0.1
export VLLM_CACHE_ROOT="$work/cache/vllm" TORCHINDUCTOR_CACHE_DIR="$work/cache/inductor" CUDA_CACHE_PATH="$work/cache/cuda"
export TRITON_CACHE_DIR="$work/cache/triton" FLASHINFER_WORKSPACE_BASE="$work/cache/flashinfer"
# LIBFABRIC of this machine: libfabric's tcp provider (there is no EFA).
[ -z "${LF_DIR:-}" ] || export LD_LIBRARY_PATH="$LF_DIR:${LD_LIBRARY_PATH:-}" FI_PROVIDER_PATH="$LF_DIR/prov" FI_PROVIDER=tcp
python3 -m ray.scripts.scripts start --head --node-ip-address=127.0.0.1 --port=6400 --num-cpus=16 --num-gpus=1 \
    --resources='{"prefill": 4, "decode": 4, "llm": 4}' --object-store-memory=2000000000 --dashboard-host=127.0.0.1 \
    --metrics-export-port=8090 --disable-usage-stats > "$work/ray.log" 2>&1
tail -1 "$work/ray.log"
python3 "$here/serve_pd.py" "$phases" "$out" --models "$models" --configs "$configs" "$@"
python3 -m ray.scripts.scripts stop --force > /dev/null 2>&1
