#!/usr/bin/env bash
# Sets up what is missing and runs the main job: four ranks, the default suite.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .venv/bin/ppharness ] || [ -n "${VIRTUAL_ENV:-}" ] || scripts/setup.sh >&2
[ -x .venv/bin/ppharness ] && export PATH="$PWD/.venv/bin:$PATH"
command -v ppharness >/dev/null || scripts/setup.sh >&2
exec torchrun --nproc-per-node "${NPROC:-4}" -m ppharness "$@"
