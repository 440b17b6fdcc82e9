//! Finds the policies that the binary carries. They are WebAssembly, which `make policies` builds:
//! a build script must not install a toolchain.

use std::path::PathBuf;

const POLICIES: [&str; 4] = [
    "least-tokens",
    "session-affinity",
    "parent-affinity",
    "conversation-round-robin",
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
    println!("cargo:rustc-env=POINTSMAN_POLICIES={}", folder.display());
}
