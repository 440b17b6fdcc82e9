//! Finds the policies and the Envoy adapter that the binary carries. They are WebAssembly, which `make policies` builds:
//! a build script must not install a toolchain.

use std::path::PathBuf;

const POLICIES: [&str; 4] = [
    "least-tokens",
    "session-affinity",
    "parent-affinity",
    "conversation-round-robin",
];

/// What fuses with them for Envoy; as a core module.
const ADAPTER: &str = "envoy-adapter";

fn main() {
    println!("cargo:rustc-check-cfg=cfg(envoy_adapter)");
    if std::env::var_os("CARGO_FEATURE_POLICIES").is_none() {
        return;
    }
    println!("cargo:rerun-if-env-changed=POINTSMAN_POLICIES");
    let folder = std::env::var_os("POINTSMAN_POLICIES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/policies"),
        PathBuf::from,
    );
    for policy in POLICIES {
        let file = folder.join(policy).with_extension("wasm");
        println!("cargo:rerun-if-changed={}", file.display());
        if !file.is_file() {
            println!(
                "cargo:error=the policy {policy} is not built: wanted {}. Run `make policies` \
                 first, or leave the policies out with --no-default-features",
                file.display()
            );
        }
    }
    let adapter = folder.join(ADAPTER).with_extension("wasm");
    if adapter.is_file() {
        println!("cargo:rerun-if-changed={}", adapter.display());
        println!("cargo:rustc-cfg=envoy_adapter");
    } else {
        // A file that is not there counts as changed each time; its folder does not.
        println!("cargo:rerun-if-changed={}", folder.display());
        println!(
            "cargo:warning=no Envoy adapter: `pointsman envoy build` will need --adapter FILE"
        );
    }
    println!("cargo:rustc-env=POINTSMAN_POLICIES={}", folder.display());
}
