#!/bin/sh
# What the README says, alone: this crate's own workspace and target folder.
set -eu
pointsman=../../target/release/pointsman
cargo test --release --quiet
cargo build --release --quiet
engine=$(mktemp -d)
trap 'rm -r "$engine"' EXIT
echo 5000 > "$engine/max_queue_ms"
"$pointsman" engine driver target/release/libengine_driver_rust.so --config "{\"folder\": \"$engine\"}" --set max_queue_ms=100
test "$(cat "$engine/max_queue_ms")" = 100
