#!/bin/sh
# Builds and tests every example alone, as its reader would. Each has a test.sh of its own.
set -eu
cd "$(dirname "$0")"
for example in */test.sh; do
  echo "examples/$example"
  (cd "$(dirname "$example")" && sh ./test.sh)
done
