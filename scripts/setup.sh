#!/usr/bin/env bash
# A virtual environment with ppharness and everything its tests need.
# An environment that is active already is used as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${VIRTUAL_ENV:-}" ]; then
    python3 -m venv .venv
    export PATH="$PWD/.venv/bin:$PATH"
fi
python -c "import torch" 2>/dev/null || pip install "torch==2.13.0"
pip install -e ".[test]"
