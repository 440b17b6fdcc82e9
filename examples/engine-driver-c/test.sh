#!/bin/sh
# What the README says.
set -eu
pointsman=../../target/release/pointsman
cc -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC -I ../../host/engine/include -o driver.so driver.c
"$pointsman" engine driver driver.so --config '{"ranks": 2}' --set prefill_decode_interval=10 |
  grep -q 'rank 1  prefill_decode_interval = 10  (0 to 1000 ticks)'
"$pointsman" engine driver driver.so --kernels bmm | grep -q 'bmm-tiled'
profiles=$(mktemp -d)
trap 'rm -r "$profiles"' EXIT
"$pointsman" engine profile --config pointsman.toml --duration 100ms --out "$profiles" |
  grep -q 'a-rank-0.trace.json … a-rank-1.trace.json'
grep -q '"name":"a/1"' "$profiles"/*/merged.trace.json
! "$pointsman" engine driver driver.so --set max_queue_ms=-1 2> /dev/null
