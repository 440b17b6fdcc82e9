//! Finds the policies and the Envoy adapter that the binary carries. They are WebAssembly, which
//! `make policies` builds: a build script must not install a toolchain.

use std::path::PathBuf;

const MODULES: [&str; 6] = [
    "least-tokens",
    "session-affinity",
    "parent-affinity",
    "conversation-round-robin",
    "decode-protect",
    // What fuses with them for Envoy; a core module.
    "envoy-adapter",
];

fn main() {
    if std::env::var_os("CARGO_FEATURE_POLICIES").is_none() {
        return;
    }
    println!("cargo:rerun-if-env-changed=POINTSMAN_POLICIES");
    let folder = std::env::var_os("POINTSMAN_POLICIES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/policies"),
        PathBuf::from,
    );
    for module in MODULES {
        let file = folder.join(module).with_extension("wasm");
        println!("cargo:rerun-if-changed={}", file.display());
        if !file.is_file() {
            println!(
                "cargo:error={module} is not built: wanted {}. Run `make policies` \
                 first, or leave the policies out with --no-default-features",
                file.display()
            );
        }
    }
    println!("cargo:rustc-env=POINTSMAN_POLICIES={}", folder.display());
}
