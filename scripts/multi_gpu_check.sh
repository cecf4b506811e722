#!/usr/bin/env bash
# The main job with one rank a GPU: scripts/multi_gpu_check.sh [RANKS] [DEVICE] [OUT]
# Made for four GPUs; on fewer they are shared, with DEVICE=cpu it runs without any.
# NVLink multicast is left as the machine has it set (NCCL_NVLS_ENABLE is not touched).
# OUT, a folder, keeps each run's JSON and log, and summary.txt.
cd "$(dirname "$0")/.." || exit 2
ranks=${1:-4}
device=${2:-auto}
python=${PYTHON:-python3}
if [ -n "${3:-}" ]; then
    mkdir -p "$3" && out=$(cd "$3" && pwd) || exit 2
    exec > >(tee "$out/summary.txt") 2>&1
else
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
failed=0

job() { # job NAME LIMIT ARGS...: the main job; its exit code goes to $code
    local name=$1 limit=$2
    shift 2
    timeout -k 5 "$limit" "$python" -m torch.distributed.run --nproc-per-node "$ranks" -m ppharness \
        --device "$device" --timeout 20 -q --json "$out/$name.json" "$@" >"$out/$name.log" 2>&1
    code=$?
}

verdict() { # verdict NAME PYTHON-EXPRESSION over r, the result
    if "$python" - "$out/$1.json" "$2" <<'PY'; then echo "ok    $1"; else
import json, sys
r = json.load(open(sys.argv[1]))
ranks = [x for s in r["scenarios"] for x in s["ranks"]]
blamed = sorted({f["label"] for s in r["scenarios"] for f in s["findings"]})
bad = {x["label"] for x in ranks if x["outcome"] in ("crashed", "failed", "hung")}
kinds = {f["kind"] for s in r["scenarios"] for f in s["findings"]}
last = f"PP{r['world']['pp_size'] - 1}"
print("     ", r["world"], r["outcome"], "blamed:", blamed)
sys.exit(0 if eval(sys.argv[2]) else 1)
PY
        echo "FAIL  $1"
        tail -n 8 "$out/$1.log"
        failed=1
    fi
}

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
echo "$ranks ranks, $gpus GPUs, NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE-unset}"
job builtin 300
verdict builtin 'r["outcome"] == "passed"'
if [ "$gpus" -ge "$ranks" ] && [ "$device" != cpu ]; then
    verdict builtin 'r["world"]["ranks_per_gpu"] == 1'
fi
job index-fill 300 --target index-fill founding-case
verdict index-fill 'last not in bad and len(bad) == r["world"]["pp_size"] - 1 and r["outcome"] == "crashed"'
job index-fill-int64 300 --target index-fill-int64 last-slot-live aborts-in-flight
verdict index-fill-int64 'last not in blamed and "stray_write" in kinds'
for seed in 0 1 2 3 4 5 6 7 8 9; do
    job "perturb-$seed" 120 --perturb "$seed" founding-case configs/more/multi-turn.yaml
    verdict "perturb-$seed" 'r["outcome"] == "passed"'
done
job killed 120 --inject kill@PP1:0 founding-case
verdict killed 'blamed == ["PP1"] and r["exit_code"] == 3'
job stalled 120 --inject stall@PP1:0 founding-case
verdict stalled 'blamed == ["PP1"] and r["exit_code"] == 3'
if [ "$gpus" -gt 0 ]; then
    left=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader | grep -c .)
    if [ "$left" -eq 0 ]; then echo "ok    nothing left on the GPUs"; else
        echo "FAIL  $left processes are left on the GPUs"
        failed=1
    fi
fi
echo "step beside a bare loop (at most 1.25 on GPUs):"
timeout 200 "$python" -m torch.distributed.run --nproc-per-node "$ranks" scripts/bench_steps.py \
    --device "$device" --steps 200 --rounds 5 || failed=1
if [ "$gpus" -ge 4 ]; then
    timeout 400 "$python" -m pytest -q -p no:cacheprovider -m gpu -n 2 tests || failed=1
elif [ "$gpus" -gt 0 ]; then
    timeout 400 "$python" -m pytest -q -p no:cacheprovider -m gpu tests || failed=1
fi
exit $failed
