#!/bin/sh
# Runs what the README says, and compares.
set -eu
sh ../../tests/envoy/install.sh
root=$(cd ../.. && pwd)
PATH="$root/target/release:$root/target:$PATH" python3 ../run_readme.py README.md
