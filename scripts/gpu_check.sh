#!/usr/bin/env bash
# Everything that needs one GPU, in one go: scripts/gpu_check.sh [OUT] [PART ...]
# Ends by itself whatever fails; OUT holds summary.json and the logs.
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" scripts/gpu_check.py "$@"
