#!/usr/bin/env bash
# One rank's calls under compute-sanitizer: scripts/sanitize.sh [TARGET] [SCENARIO ...]
# memcheck finds accesses out of bounds, racecheck hazards in shared memory.
# Exit code: 0 clean, 1 the sanitizer found something, 2 it cannot run here.
cd "$(dirname "$0")/.." || exit 2
target=${1:-builtin}
shift
scenarios=("${@:-founding-case}")
tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
if [ -z "$tool" ]; then
    echo "sanitize.sh: error: compute-sanitizer is not installed" >&2
    exit 2
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # each tensor an allocation of its own, so that bounds show
worst=0
for check in memcheck racecheck; do
    log=$(mktemp)
    timeout "${LIMIT:-240}" "$tool" --tool "$check" --target-processes all --error-exitcode 9 \
        "${PYTHON:-python3}" -m torch.distributed.run --nproc-per-node 1 -m ppharness \
        --device cuda --timeout 200 -q --target "$target" "${scenarios[@]}" >"$log" 2>&1
    code=$?
    grep -E "ERROR SUMMARY|RACECHECK SUMMARY|Invalid|========= .*(at|by) " "$log" | sort | uniq -c | sort -rn | head -n 12
    errors=$(grep -E "ERROR SUMMARY|RACECHECK SUMMARY" "$log" | grep -vcE "SUMMARY: 0 (errors|hazards)")
    echo "$check: exit code $code, $errors processes with errors"
    if [ "$errors" -gt 0 ]; then worst=1; fi
    if ! grep -q SUMMARY "$log"; then
        tail -n 5 "$log"
        if [ $worst -eq 0 ]; then worst=2; fi
    fi
    rm -f "$log"
done
exit $worst
