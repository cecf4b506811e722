#!/usr/bin/env bash
# Sets up what is missing and runs all tests.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .venv/bin/pytest ] || [ -n "${VIRTUAL_ENV:-}" ] || scripts/setup.sh >&2
[ -x .venv/bin/pytest ] && export PATH="$PWD/.venv/bin:$PATH"
command -v pytest >/dev/null || scripts/setup.sh >&2
exec pytest -n "${WORKERS:-2}" "$@"
