#!/bin/sh
# What the README says, alone: this crate's own workspace and target folder.
set -eu
pointsman=../../target/release/pointsman
cargo test --release --quiet
"$pointsman" policy build .
"$pointsman" policy check hello-policy.wasm
"$pointsman" policy test hello-policy.wasm --scenario scenario.toml
